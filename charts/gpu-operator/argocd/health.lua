-- The health of a ClusterGpuPolicy or a GpuNode in Argo CD. docs/guides/gitops.md explains how to install it.
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not observed the latest generation yet"}
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  conditions[condition.type] = condition
end

-- A condition, its status, and the health that it means. The first one that applies decides.
local rules = {
  {"Accepted", "False", "Degraded"},
  {"Stalled", "True", "Degraded"},
  {"Reconciling", "True", "Progressing"},
  {"Ready", "False", "Progressing"},
  {"Ready", "Unknown", "Progressing"}, -- the operator was uninstalled
  {"Degraded", "True", "Healthy"}, -- problems of GPUs, although enough nodes are ready
  {"Ready", "True", "Healthy"},
}
for _, rule in ipairs(rules) do
  local condition = conditions[rule[1]]
  if condition ~= nil and condition.status == rule[2] then
    return {status = rule[3], message = condition.message}
  end
end

if obj.status.phase == "Unmanaged" then
  return {status = "Suspended", message = obj.status.message}
end
return {status = "Progressing", message = "the operator has not reported a condition yet"}
