-- One step on one server, carried out as a whole or not at all:  deadline, step, then slot and peer, slot and peer, ...
-- Answers the slots for which the step holds. What comes after the deadline of this server's clock is refused.
local now = redis.call('TIME')
if now[1] * 1000000 + now[2] > tonumber(ARGV[1]) then
  return redis.error_reply('LATE the step came too late')
end
local me, own, spans = nil, '', {}
for line in string.gmatch(redis.call('CLUSTER', 'NODES'), '[^\n]+') do
  local id, flags, rest = string.match(line, '^(%S+) %S+ (%S+) %S+ %S+ %S+ %S+ %S+(.*)$')
  if id and string.find(',' .. flags .. ',', ',myself,', 1, true) then
    me, own = id, rest
  end
  local open = rest and string.find(rest, '[', 1, true)
  for first, last in string.gmatch(string.sub(rest or '', 1, (open or 0) - 1), '(%d+)%-?(%d*)') do
    spans[#spans + 1] = { tonumber(first), tonumber(last) or tonumber(first), id }
  end
end
-- With whom this server has a slot open: '<' as its taker, '>' as its giver.
local function open(slot, way)
  local _, last = string.find(own, '[' .. slot .. '-' .. way .. '-', 1, true)
  return last and string.sub(own, last + 1, last + 40)
end
local function from(slot) return open(slot, '<') end
local function to(slot) return open(slot, '>') end
local function owner(slot)
  for _, span in ipairs(spans) do
    if span[1] <= tonumber(slot) and tonumber(slot) <= span[2] then return span[3] end
  end
end
local function set(slot, ...)
  return not redis.pcall('CLUSTER', 'SETSLOT', slot, ...).err
end
local step = {}
-- Notes that it is to take a slot from its owner.
function step.mark(slot, peer) return from(slot) == peer or (not from(slot) and set(slot, 'IMPORTING', peer)) end
-- Notes that it is not, unless keys have come already.
function step.unmark(slot, peer, count) return from(slot) == peer and count == 0 and set(slot, 'STABLE') end
-- Whether it is to take a slot.
function step.marked(slot, peer) return from(slot) == peer end
-- Whether it is to take a slot of which nothing is here.
function step.vacant(slot, peer, count) return from(slot) == peer and count == 0 end
-- Whether it is to take a slot of which something is here.
function step.filled(slot, peer, count) return from(slot) == peer and count > 0 end
-- Whether a slot is its own, and whoever asks for a key that is not here is sent on.
function step.begun(slot, peer) return owner(slot) == me and to(slot) == peer end
-- Sends whoever asks for a key that is not here to the one that takes the slot.
function step.open(slot, peer) return owner(slot) == me and set(slot, 'MIGRATING', peer) end
-- Whether nothing of a slot is here, and nothing can come.
function step.empty(slot, peer, count)
  local of = owner(slot)
  return count == 0 and ((of == me and to(slot) == peer) or of == peer)
end
-- Owns a slot that it was to take.
function step.take(slot, peer) return from(slot) == peer and set(slot, 'NODE', me) end
-- Knows a slot of which nothing is here as another one's.
function step.give(slot, peer, count)
  local of = owner(slot)
  return to(slot) == peer and count == 0 and (of == me or of == peer) and set(slot, 'NODE', peer)
end
-- Forgets that it was to give a slot away that is not its own any more.
function step.close(slot, peer) return to(slot) == peer and owner(slot) ~= me and set(slot, 'STABLE') end
local done = {}
for place = 3, #ARGV, 2 do
  local slot, peer = ARGV[place], ARGV[place + 1]
  local count = redis.call('CLUSTER', 'COUNTKEYSINSLOT', slot)
  if step[ARGV[2]](slot, peer, count) then done[#done + 1] = tonumber(slot) end
end
return done
