-- Tells which workers one gateway lost under which requests, and hears what all did.
-- KEYS: the hash. ARGV: the teller's key of hashes, a name for a hash that is new, the name and the version that the
-- teller has heard, and as JSON a list of {field, milliseconds ago}. A field is `<hash of a request>:<worker>`, without
-- a worker for a request that is quarantined; its value is when that was, by this server's clock in milliseconds.
-- Answers the hash's name, the fleet's key of hashes, the version, and if that is another one than the teller has heard
-- a list of {field, milliseconds ago}. What was hashed by another key is not taken, what no gateway wrote goes.
local LIFE_MS, MOST, KEPT_S = 600000, 512, 3600

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local head = redis.pcall('HMGET', KEYS[1], 'id', 'key', 'version')
if head.err then head = {} end
local id, key, version = head[1], head[2], tonumber(head[3] or '')
if not id or not key or not version or not string.match(id, '^%x+$') or not string.match(key, '^%x+$') or #key ~= 64 then
  redis.call('DEL', KEYS[1])
  id, key, version = ARGV[2], ARGV[1], 0
  redis.call('HSET', KEYS[1], 'id', id, 'key', key, 'version', version)
  redis.call('EXPIRE', KEYS[1], KEPT_S)
end

local function age_of(field, value)
  local at = tonumber(value)
  if not at or not string.match(field, '^%x+:') then return nil end
  local age = now - at
  if age ~= age or age < -1000 or age > LIFE_MS then return nil end
  return math.max(age, 0)
end

local changed = false
if key == ARGV[1] then
  for _, told in ipairs(cjson.decode(ARGV[5])) do
    local at = now - told[2]
    local before = tonumber(redis.call('HGET', KEYS[1], told[1]) or '')
    if not before or before ~= before or before < at - 1000 or before > now + 1000 then
      redis.call('HSET', KEYS[1], told[1], at)
      changed = true
    end
  end
end

if not changed and id == ARGV[3] and tostring(version) == ARGV[4] then
  return cjson.encode({ id, key, version })
end

local found, flat = {}, redis.call('HGETALL', KEYS[1])
for index = 1, #flat, 2 do
  local field = flat[index]
  if field ~= 'id' and field ~= 'key' and field ~= 'version' then
    local age = age_of(field, flat[index + 1])
    if age then
      found[#found + 1] = { field, age }
    else
      redis.call('HDEL', KEYS[1], field)
    end
  end
end
if #found > MOST then
  table.sort(found, function(one, other) return one[2] < other[2] end)
  for index = #found, MOST + 1, -1 do
    redis.call('HDEL', KEYS[1], found[index][1])
    found[index] = nil
  end
end
if changed then
  version = version + 1
  redis.call('HSET', KEYS[1], 'version', version)
  redis.call('EXPIRE', KEYS[1], KEPT_S)
end
return cjson.encode({ id, key, version, found })
