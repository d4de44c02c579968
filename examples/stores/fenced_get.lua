-- Before a value is read to be written back changed: notes the reader's token, so that no older holder writes in between.
-- KEYS[1]: the hash. ARGV: the token. Answers the value, or nothing where there is none; an error STALE when the token is refused.
local function exact(text)
    local number = text and string.match(text, '^[1-9]%d*$') and tonumber(text)
    return number and number <= 9007199254740991 and number
end

local token = exact(ARGV[1])
if not token then
    return redis.error_reply('ERR not a fencing token')
end
local seen = redis.call('HGET', KEYS[1], 'fencing_token')
if seen and not exact(seen) then
    return redis.error_reply('ERR there is no fencing token where one should be')
end
if seen and token < exact(seen) then
    return redis.error_reply('STALE a newer holder has been here')
end
redis.call('HSET', KEYS[1], 'fencing_token', ARGV[1])
return redis.call('HGET', KEYS[1], 'value')
