-- One step of one gateway in the lease protocol (gateway/leasing/__init__.py has the rules). Atomic, as every script.
-- KEYS: gateways, slots, epoch, ledgers, inbox of one fleet. ARGV: the step as JSON, the channel for hints.
-- What is stored is checked like anything from outside: what cannot be read makes a new epoch, never more slots.
local EXPIRE, REPORT, RECENT, FORGET = 28000, 12000, 2000, 600000
local WINDOW, WINDOW_YOUNG, WINDOW_FIRST = 10000, 1500, 1000
local JOINING = 1000
local MAX_STEP, MAX_GATEWAYS, MAX_COUNT, CLEAR = 2000, 256, 1000000, 1000

local gateways_key, slots_key, epoch_key, ledgers_key, inbox_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local step = cjson.decode(ARGV[1])
local me = step.id

local function whole(value, most)
  return type(value) == 'number' and value >= 0 and value <= most and value % 1 == 0
end

local function read(text)
  if not text then return nil end
  local good, value = pcall(cjson.decode, text)
  if good and type(value) == 'table' then return value end
  return nil
end

-- A key of another type is somebody else's mistake: it goes, and what was there counts as lost.
for at, key in ipairs(KEYS) do
  local found = redis.pcall(at == 3 and 'GET' or 'HLEN', key)
  if type(found) == 'table' and found.err then redis.call('DEL', key) end
end

local function read_all(key)
  local flat, found = redis.call('HGETALL', key), {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end

-- 1. Time: the sum of small steps of this server's clock, so that a clock that is set changes next to nothing.
local time = redis.call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local server = redis.call('INFO', 'server')
local run = string.match(server, 'run_id:(%x+)')
local uptime_s = tonumber(string.match(server, 'uptime_in_seconds:(%d+)'))

local epoch = read(redis.call('GET', epoch_key))
if epoch and not (whole(epoch.n, 2 ^ 52) and whole(epoch.clock, 2 ^ 52) and whole(epoch.wall, 2 ^ 52)
    and whole(epoch.since, 2 ^ 52) and whole(epoch.window, 2 ^ 52)) then
  epoch = nil
end
-- A key alone may be lost, by eviction or by hand. How many entries each of them had the epoch remembers.
local lost = epoch and (epoch.gateways ~= redis.call('HLEN', gateways_key) or epoch.slots ~= redis.call('HLEN', slots_key))
if redis.call('HLEN', gateways_key) > MAX_GATEWAYS then
  redis.call('DEL', gateways_key)
  lost = true
end
local clock = 0
if epoch then clock = epoch.clock + math.max(0, math.min(wall - epoch.wall, MAX_STEP)) end

-- 2. The gateways there are.
local records = {}
local known = 0
for id, text in pairs(read_all(gateways_key)) do
  local record = read(text)
  if not (record and whole(record.s, 2 ^ 52) and whole(record.e, 2 ^ 52)
      and whole(record.at, epoch and clock or 2 ^ 52) and type(record.who) == 'string') then
    redis.call('HDEL', gateways_key, id)
    lost = true -- its gateway tells again, or others tell of it
  elseif clock - record.at >= FORGET then
    redis.call('HDEL', gateways_key, id)
    redis.call('HDEL', ledgers_key, id)
    redis.call('HDEL', inbox_key, id)
  else
    records[id] = record
    known = known + 1
  end
end

local function save(id)
  redis.call('HSET', gateways_key, id, cjson.encode(records[id]))
end

local function drop(id)
  if records[id] then known = known - 1 end
  records[id] = nil
  redis.call('HDEL', gateways_key, id)
  redis.call('HDEL', ledgers_key, id)
  redis.call('HDEL', inbox_key, id)
end

local function save_epoch()
  epoch.clock, epoch.wall = clock, wall
  epoch.gateways, epoch.slots = redis.call('HLEN', gateways_key), redis.call('HLEN', slots_key)
  redis.call('SET', epoch_key, cjson.encode(epoch))
end

-- 3. An epoch ends when what is stored may not be all that was granted: another server, an empty or a damaged one.
local function new_epoch(window)
  local last = epoch and epoch.n or 0
  epoch = { n = math.max(last, step.epoch) + 1, run = run, since = clock, window = window }
  for id, record in pairs(records) do
    record.at = clock
    save(id)
  end
end

if not epoch and step.epoch == 0 and known == 0 then
  new_epoch(step.fresh and 0 or uptime_s < 10 and WINDOW_YOUNG or WINDOW_FIRST)
elseif not epoch or epoch.run ~= run or step.epoch > epoch.n or lost then
  new_epoch(WINDOW)
end

-- 4. Who is gone for certain, who lives though it is silent, whom the caller knows from the epoch before.
for _, each in ipairs(step.dead) do
  local record = records[each[1]]
  if record and record.who == each[2] and each[1] ~= me then drop(each[1]) end
end
for _, id in ipairs(step.alive) do
  if records[id] then
    records[id].w = clock
    save(id)
  end
end

local mine = records[me]
if mine and step.seq <= mine.s then
  save_epoch()
  return cjson.encode({ stale = 1, epoch = epoch.n })
end
if step.leave then
  drop(me)
  save_epoch()
  redis.call('PUBLISH', ARGV[2], me)
  return cjson.encode({ left = 1, epoch = epoch.n })
end

-- 5. Announcing: a gateway's first step in an epoch brings all that it holds.
local announces = not mine or mine.e ~= epoch.n
if announces and not step.full then
  save_epoch()
  return cjson.encode({ announce = 1, epoch = epoch.n })
end
if not mine then
  if known >= MAX_GATEWAYS then
    save_epoch()
    return cjson.encode({ crowded = 1, epoch = epoch.n })
  end
  mine = { s = 0, e = 0, at = clock, who = step.who, j = clock }
  records[me] = mine
  known = known + 1
end
if announces and epoch.open ~= 1 then
  for _, each in ipairs(step.peers) do
    if not records[each[1]] and known < MAX_GATEWAYS then
      records[each[1]] = { s = 0, e = 0, at = clock, who = each[2] }
      known = known + 1
      save(each[1])
    end
  end
end

-- 6. Nothing is granted before all have announced. Who is silent then may hold anything.
local renews = not announces and not step.full and clock - mine.at <= EXPIRE
mine.s, mine.e, mine.at, mine.who = step.seq, epoch.n, clock, step.who
if epoch.open ~= 1 and clock - epoch.since >= epoch.window then
  local all = true
  for _, record in pairs(records) do all = all and record.e == epoch.n end
  if all then epoch.open = 1 end
end
local live = 0
for _, record in pairs(records) do
  if clock - record.at <= EXPIRE then live = live + 1 end
end

-- 7. Slots. A document holds for each gateway {granted, reserve, limit, need, class of the need, least in flight}.
local touched, hint = {}, false

local function load(name)
  local text = redis.call('HGET', slots_key, name)
  if not text then return {} end
  local doc = read(text)
  if not doc then return nil end
  for id, h in pairs(doc) do
    if type(id) ~= 'string' or type(h) ~= 'table' then return nil end
    for at = 1, 6 do
      if not whole(h[at], at == 5 and CLEAR or MAX_COUNT) then return nil end
    end
    if not records[id] then doc[id] = nil end
  end
  return doc
end

local function age(id) return clock - records[id].at end

local function sums(doc)
  local limit, total, needs = nil, 0, {}
  for id, h in pairs(doc) do
    total = total + h[1]
    if age(id) <= EXPIRE and (not limit or h[3] < limit) then limit = h[3] end
    if h[4] > 0 and age(id) <= RECENT then needs[#needs + 1] = id end
  end
  table.sort(needs)
  return limit or 0, total, needs
end

local function signature(doc)
  local limit, total, needs = sums(doc)
  local parts = { limit, total > limit and 1 or 0 }
  for _, id in ipairs(needs) do parts[#parts + 1] = id .. '=' .. doc[id][4] .. '/' .. doc[id][5] end
  return table.concat(parts, ' ')
end

local function tell(id, name)
  if id ~= me and age(id) <= RECENT then
    local list = redis.call('HGET', inbox_key, id)
    redis.call('HSET', inbox_key, id, list and list .. '\n' .. name or name)
    hint = true
  end
end

-- What expired gateways may still run above their reserve is what the engine runs and no live gateway does.
local function expire(doc, running)
  local least, gone = 0, {}
  for id, h in pairs(doc) do
    local silent = age(id)
    if silent > EXPIRE then
      if silent < EXPIRE + REPORT then return end
      gone[#gone + 1] = id
    elseif silent <= RECENT then
      least = least + h[6]
    end
  end
  for _, id in ipairs(gone) do
    local h, record = doc[id], records[id]
    local witnessed = record.w and clock - record.w <= EXPIRE
    h[1] = math.min(h[1], math.max(witnessed and h[2] or 0, running - least))
    h[2] = math.min(h[2], h[1])
  end
end

-- A newcomer gets nothing before the others have seen it: they vouch for it should this server lose its writes.
local function settled(id)
  local record = records[id]
  return live == 1 or not whole(record.j, clock) or clock - record.j >= JOINING
end

-- While an epoch is not open, what an announced gateway gives back is free for certain, and nothing else is. It is
-- counted beside the document, under a name that no resource has.
local function spare(name)
  local kept = read(redis.call('HGET', slots_key, '+' .. name))
  if kept and whole(kept[1], MAX_COUNT) and kept[2] == epoch.n then return kept[1] end
  return 0
end

local function set_spare(name, count)
  redis.call('HSET', slots_key, '+' .. name, cjson.encode({ count, epoch.n }))
end

local function grant(name, doc, wish)
  local limit, total, waiting = sums(doc)
  local needs = {}
  for _, id in ipairs(waiting) do
    if settled(id) then needs[#needs + 1] = id end
  end
  if not settled(me) then wish = 0 end
  local free = limit - total
  local known = epoch.open == 1 and free or spare(name)
  free = math.min(free, known)
  local before = free
  while free > 0 and #needs > 0 do
    local best = 1
    for at = 2, #needs do
      local a, b = doc[needs[at]], doc[needs[best]]
      if a[5] < b[5] or (a[5] == b[5] and a[1] < b[1]) then best = at end
    end
    local id = needs[best]
    local h = doc[id]
    h[1], h[4] = h[1] + 1, h[4] - 1
    free = free - 1
    touched[id] = true
    if h[4] == 0 then table.remove(needs, best) end
  end
  if free > 0 and wish > 0 then
    wish = math.min(free, wish)
    doc[me][1] = doc[me][1] + wish
    free = free - wish
  end
  if epoch.open ~= 1 and free < before then set_spare(name, known - (before - free)) end
  for id in pairs(touched) do
    tell(id, name)
    touched[id] = nil
  end
end

local function standing(doc)
  local limit, total = sums(doc)
  local fair, poor, needs = math.floor(limit / live), 0, {}
  for id, h in pairs(doc) do
    if id ~= me and h[4] > 0 and age(id) <= RECENT then
      local klass = string.format('%d', h[5])
      needs[klass] = (needs[klass] or 0) + h[4]
      poor = poor + math.min(h[4], math.max(0, fair - h[1]))
    end
  end
  local own = doc[me] and doc[me][1] or 0
  return { own, limit, total - own, poor, needs }
end

local function damaged()
  redis.call('DEL', slots_key)
  new_epoch(WINDOW)
  mine.s = step.seq
  save(me)
  save_epoch()
  return cjson.encode({ announce = 1, epoch = epoch.n })
end

local shown = {}
local claimed = {}
for _, c in ipairs(step.claims) do
  local name, held, keep, reserve, limit = c[1], c[2], c[3], c[4], c[5]
  local doc = load(name)
  if not doc then return damaged() end
  local before = signature(doc)
  local h = doc[me] or { 0, 0, 0, 0, 0, 0 }
  -- Nobody takes from who renews in time: that less is written here than is held is damage.
  if renews and held > h[1] then return damaged() end
  if not announces then
    local given = math.max(0, math.min(held - keep, h[1]))
    h[1] = h[1] - given
    if epoch.open ~= 1 and given > 0 then set_spare(name, math.min(spare(name) + given, MAX_COUNT)) end
  elseif epoch.open ~= 1 then
    h[1] = keep
  else
    h[1] = math.min(h[1], keep)
  end
  claimed[name] = true
  if limit < 0 then
    doc[me] = nil
  else
    h[2], h[3], h[4], h[5], h[6] = math.min(reserve, h[1]), limit, c[6], c[7], c[9]
    doc[me] = h
    if c[10] >= 0 then expire(doc, c[10]) end
  end
  grant(name, doc, limit < 0 and 0 or c[8])
  if signature(doc) ~= before then
    for id, each in pairs(doc) do
      if each[1] > 0 then tell(id, name) end
    end
  end
  if next(doc) then
    redis.call('HSET', slots_key, name, cjson.encode(doc))
  else
    redis.call('HDEL', slots_key, name)
  end
  shown[name] = standing(doc)
end

-- What was not announced is not held. What nobody holds any more is not kept.
if announces then
  for name, text in pairs(read_all(slots_key)) do
    if string.sub(name, 1, 1) == '+' then
      if spare(string.sub(name, 2)) == 0 or epoch.open == 1 then redis.call('HDEL', slots_key, name) end
    elseif not claimed[name] then
      local doc = load(name)
      if not doc then return damaged() end
      local held = doc[me]
      doc[me] = nil
      if not next(doc) then
        redis.call('HDEL', slots_key, name)
      elseif held then
        redis.call('HSET', slots_key, name, cjson.encode(doc))
      end
    end
  end
end

-- 8. What others' steps have changed for this gateway since its last one.
local inbox = redis.call('HGET', inbox_key, me)
if inbox then
  redis.call('HDEL', inbox_key, me)
  for name in string.gmatch(inbox, '[^\n]+') do
    if not shown[name] then
      local doc = load(name)
      if not doc then return damaged() end
      shown[name] = standing(doc)
    end
  end
end

-- 9. Ledgers.
local ledgers = {}
if step.ledger then
  redis.call('HSET', ledgers_key, me, clock .. '|' .. step.ledger)
  for id, text in pairs(read_all(ledgers_key)) do
    if id ~= me and records[id] then
      local at, body = string.match(text, '^(%d+)|(.*)$')
      if at then ledgers[id] = { math.max(0, clock - at), body } end
    end
  end
end

save(me)
save_epoch()
if hint then redis.call('PUBLISH', ARGV[2], me) end
local peers = {}
for id, record in pairs(records) do
  if id ~= me then peers[id] = { record.who, clock - record.at } end
end
return cjson.encode({
  epoch = epoch.n, open = epoch.open == 1, live = live, peers = peers, slots = shown, ledgers = ledgers,
})
