-- All requests of one call, in order: KEYS[i] with ARGV[4i-3 .. 4i] = operation, owner token, TTL in ms, last moment.
--
-- The answer is the node's time (seconds, microseconds; as strings, since a Lua number would lose digits when printed),
-- then one entry a request: a number as below, {remaining ms} where the key is held by another, or an error's text.

local DONE, TOO_LATE, MISSING, FOREIGN = 1, 2, 3, 4

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Who holds the key: a token, false if it is free, or a table with an error (the key may hold anything).
local function holder_of(key)
  return redis.pcall('GET', key)
end

-- A7: the own token there counts as granted, whoever's earlier try put it there.
local function held(key, token)
  local holder = holder_of(key)
  if type(holder) == 'table' then return holder.err end
  if holder == token then return DONE end
  return { redis.call('PTTL', key) }
end

local function acquire(key, token, ttl, latest)
  -- A9: a request that was under way for too long refuses itself.
  if now > tonumber(latest) then return TOO_LATE end
  local set = redis.pcall('SET', key, token, 'NX', 'PX', ttl)
  if not set then return held(key, token) end
  return set.err or DONE
end

-- Runs `act` if the key holds the token.
local function if_mine(key, token, act)
  local holder = holder_of(key)
  if not holder then return MISSING end
  if type(holder) == 'table' then return holder.err end
  if holder ~= token then return FOREIGN end
  local result = act()
  return type(result) == 'table' and result.err or DONE
end

local operations = {
  a = acquire,
  h = held,
  -- E1: an extension never shortens.
  e = function(key, token, ttl)
    return if_mine(key, token, function()
      if redis.call('PTTL', key) >= tonumber(ttl) then return DONE end
      return redis.pcall('PEXPIRE', key, ttl)
    end)
  end,
  -- L1: compare and delete.
  r = function(key, token)
    return if_mine(key, token, function() return redis.pcall('DEL', key) end)
  end,
}

local answer = { time[1], time[2] }
for i, key in ipairs(KEYS) do
  local at = 4 * i
  answer[i + 2] = operations[ARGV[at - 3]](key, ARGV[at - 2], ARGV[at - 1], ARGV[at])
end
return answer
