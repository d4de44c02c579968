-- Writes a value, unless somebody with a larger fencing token was here before.
--
--   KEYS[1]  a hash: the value, and the largest token seen
--   ARGV[1]  the writer's token
--   ARGV[2]  the value
--
-- Answers 1 if the value was written, 0 if it was refused. Tokens stay below 2^53: exact as Lua numbers.

local newest = redis.call('HGET', KEYS[1], 'token') or '0'
if tonumber(ARGV[1]) < tonumber(newest) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return 1
