-- KEYS[1]: a hash with the value and the token of its last writer. ARGV: the token, the value.
-- Answers 1 when the value is written, 0 when it is refused because a newer holder has written.
local function exact(text)
    -- As decimal digits and below 2^53, where Lua's numbers are exact. Anything else ("nan" for one) could slip through a comparison.
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
    return 0
end
-- The text as it came: a number formatted by Lua would lose its last digits.
redis.call('HSET', KEYS[1], 'fencing_token', ARGV[1], 'value', ARGV[2])
return 1
