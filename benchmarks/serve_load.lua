-- Asks for the bodies of a file, one by one, from a given place on: wrk … -- FILE OFFSET
local bodies, at = {}, 0
local headers = {["Content-Type"] = "application/json"}

function init(args)
  at = tonumber(args[2])
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
end

function request()
  at = at + 1
  return wrk.format("POST", nil, headers, bodies[(at - 1) % #bodies + 1])
end
