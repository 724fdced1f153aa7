"""Slot leases: exact limits over several gateways, by blocks of slots that one atomic script in Redis hands out.

A resource (a worker) has a limit; every gateway holds some of its slots and runs no more requests there. The rules:

1. What all hold is never more than the limit: the script adds up what it has granted before it grants. Of the limits
   that gateways state the least counts, so that a lowered one holds at once and a raised one when all know it.
2. A gateway gives back by lowering its own use first and telling the store then; it uses a grant only after the
   store has said so. A lost message therefore leaves the store believing that more is held than is.
3. Steps carry a sequence number: one that a slow network delivers late is not obeyed.
4. Who could not renew for `HOLD_S` (its own clock) keeps its reserve only, what it named in its steps; the store
   counts all of it for `EXPIRE_S` (its own clock, 1.4 times as long) and longer, until the engine's own count shows
   that the slots above the reserve are not in use. The reserve is kept until the gateway leaves, is seen dead, or has
   been silent for ten minutes.
5. A store that may have lost writes (another server, an empty one, a damaged one) begins a new epoch: for ten seconds
   it only listens to what gateways hold, and it grants nothing before every gateway that anybody knows has spoken.
   Until then only what a gateway gives back changes hands: that is free for certain.
6. A free slot goes to who needs it for the highest class, of equals to who holds least. Holders of unused slots are
   told of a need and give back; of slots in use those above the fair share go when they get free.

`holder.py` is the gateway's side, `lease.lua` the store's; `keeper.py` carries steps to Redis.
"""
