-- The values under KEYS, each cut to ARGV[1] bytes and one more; false where there is none, and what cannot be cut as ARGV[2].
local found = {}
for at, key in ipairs(KEYS) do
  local value = redis.pcall('GETRANGE', key, 0, tonumber(ARGV[1]))
  if type(value) == 'table' then value = ARGV[2] end
  found[at] = value ~= '' and value
end
return found
