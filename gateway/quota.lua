-- Tells what one gateway's tenants used and hears what all gateways' did, by the second.
-- KEYS: the leases' epoch (its clock), then one hash for each tenant. ARGV: who tells, the number of its telling, and
-- as JSON a list of {seconds ago, requests, tokens} for each tenant. A telling that comes twice counts once.
-- Answers for each tenant the number of the teller's last telling before this one, and what all used. What cannot be
-- what this script has written goes: a key of another type, a field that is no number.
local SPAN, LIFE_S = 60, 180

local function whole(value)
  return type(value) == 'number' and value % 1 == 0 and value > -2 ^ 52 and value < 2 ^ 52
end

local function add(key, field, amount)
  local done = redis.pcall('HINCRBY', key, field, amount)
  if type(done) == 'table' then redis.call('HSET', key, field, amount) end
end

local now
local good, epoch = pcall(cjson.decode, redis.call('GET', KEYS[1]) or '')
if good and type(epoch) == 'table' and whole(epoch.clock) then
  now = math.floor(epoch.clock / 1000)
else
  now = tonumber(redis.call('TIME')[1])
end

local all = {}
for at, changes in ipairs(cjson.decode(ARGV[3])) do
  local key = KEYS[at + 1]
  local found = redis.pcall('HLEN', key)
  if type(found) == 'table' then redis.call('DEL', key) end
  local told = '#' .. ARGV[1]
  local last = tonumber(redis.call('HGET', key, told) or '') or 0
  if not whole(last) or last < 0 then last = 0 end
  if #changes > 0 and last < tonumber(ARGV[2]) then
    for _, change in ipairs(changes) do
      local second = now - change[1]
      add(key, 'r' .. second, change[2])
      add(key, 't' .. second, change[3])
    end
    redis.call('HSET', key, told, ARGV[2])
    redis.call('EXPIRE', key, LIFE_S)
  end
  local seconds, flat = {}, redis.call('HGETALL', key)
  for index = 1, #flat, 2 do
    local kind, number = string.match(flat[index], '^([rt])(%d+)$')
    local second, value = tonumber(number), tonumber(flat[index + 1])
    if kind and whole(value) then
      if second <= now - SPAN or second > now then
        redis.call('HDEL', key, flat[index])
      else
        local entry = seconds[number] or { now - second, 0, 0 }
        entry[kind == 'r' and 2 or 3] = value
        seconds[number] = entry
      end
    end
  end
  local list = {}
  for _, entry in pairs(seconds) do list[#list + 1] = entry end
  all[at] = { last, list }
end
return cjson.encode(all)
