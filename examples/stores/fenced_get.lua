-- Reads a value that is to be written back, changed, with fenced_set.lua. Notes the token already: an older writer that
-- comes between this read and that write would be overwritten unseen.
--
--   KEYS[1]  the hash
--   ARGV[1]  the reader's token
--
-- Answers the value, nil if the token is refused.

local newest = redis.call('HGET', KEYS[1], 'fencing_token') or '0'
if tonumber(ARGV[1]) < tonumber(newest) then return false end
redis.call('HSET', KEYS[1], 'fencing_token', ARGV[1])
return redis.call('HGET', KEYS[1], 'value')
