{{/*
Helpers are called nodestack.…: charts under one parent share their helpers' names, and those of NVIDIA's chart are called
gpu-operator.…. Objects are called nodestack-…, so that both charts can be installed into one namespace.
*/}}

{{- define "nodestack.operator" -}}
{{ .Values.fullnameOverride | default "nodestack-gpu-operator" }}
{{- end }}

{{- define "nodestack.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* Fixed, because the operator finds the probe by this name. */}}
{{- define "nodestack.probe" -}}
nodestack-nvml-probe
{{- end }}

{{/* Fixed, because the operator finds the detector by this name. */}}
{{- define "nodestack.detector" -}}
nodestack-gpu-detector
{{- end }}

{{/* Fixed, because the operator runs NVIDIA's DRA driver with the account of this name. */}}
{{- define "nodestack.dra-driver" -}}
nodestack-dra-driver
{{- end }}

{{/* The label that selects the pods of a part. It does not depend on values. Argument: part. */}}
{{- define "nodestack.selector" -}}
{{- $names := dict "operator" "nodestack-gpu-operator" "probe" "nvml-probe" "detector" "gpu-detector" -}}
app.kubernetes.io/name: {{ get $names .part | default (printf "nodestack-%s" .part) }}
{{- end }}

{{- define "nodestack.test" -}}
{{ include "nodestack.operator" . }}-test
{{- end }}

{{- define "nodestack.uninstall" -}}
{{ include "nodestack.operator" . }}-uninstall
{{- end }}

{{/* A duration of one unit, such as 4m, in seconds. */}}
{{- define "nodestack.seconds" -}}
{{ mul (regexFind "^[0-9]+" .) (get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]$" .)) }}
{{- end }}

{{/* The annotation of an object without which pods on nodes cannot be created again: it stays as long as they do. */}}
{{- define "nodestack.kept" -}}
{{- if eq .Values.uninstall.policies "Keep" -}}
helm.sh/resource-policy: keep
{{- end -}}
{{- end }}

{{/* The annotations of an object of the hook for helm uninstall. Argument: weight, by which objects are created in order. */}}
{{- define "nodestack.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
# Helm prints why the hook failed.
helm.sh/hook-output-log-policy: hook-failed
helm.sh/hook-weight: {{ .weight | quote }}
{{- end }}

{{/* The label selector of operator and probe, which serve metrics. */}}
{{- define "nodestack.bothParts" -}}
matchExpressions:
  - key: app.kubernetes.io/name
    operator: In
    values: [nodestack-gpu-operator, nvml-probe]
{{- end }}

{{/*
The metadata of an object. Arguments: root; and, if they apply, part (operator by default), name (that of the part by default),
suffix (of the name), cluster (true: has no namespace), labels, annotations.
*/}}
{{- define "nodestack.metadata" -}}
{{- $part := .part | default "operator" -}}
name: {{ .name | default (include (printf "nodestack.%s" $part) .root) }}{{ .suffix }}
{{- if not .cluster }}
namespace: {{ include "nodestack.namespace" .root }}
{{- end }}
labels:
  {{- include "nodestack.selector" (dict "part" $part) | nindent 2 }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  app.kubernetes.io/part-of: gpu-operator
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The metadata of the pods of operator, probe or detector. Its labels, unless values add some, are the same in every chart version, so that an
upgrade does not recreate pods needlessly. Arguments: root, part, as (the part whose label it has, if it is another one).
*/}}
{{- define "nodestack.podMetadata" -}}
{{- $values := index .root.Values .part -}}
labels:
  {{- include "nodestack.selector" (dict "part" (.as | default .part)) | nindent 2 }}
  app.kubernetes.io/part-of: gpu-operator
  {{- with merge (dict) $values.podLabels .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
What the specs of all pods have in common. Arguments: root, part; and, if it applies, nodeSelector (added to that of the values).
*/}}
{{- define "nodestack.podSpec" -}}
{{- $values := merge (dict "nodeSelector" (.nodeSelector | default dict)) (index .root.Values .part) -}}
serviceAccountName: {{ include (printf "nodestack.%s" .part) .root }}
automountServiceAccountToken: true
# Environment variables for the namespace's Services are not used.
enableServiceLinks: false
{{- with include "nodestack.pullSecrets" .root | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- if .root.Values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- range $key := list "priorityClassName" "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" }}
{{- with get $values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment variables of all containers. Arguments: root, part. */}}
{{- define "nodestack.env" -}}
- name: RUST_LOG
  value: {{ (index .root.Values .part).logLevel | quote }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Binds a role to a service account. Arguments: root, kind (of the role), name, account (that of the same name by default). */}}
{{- define "nodestack.binding" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account | default .name }}
    namespace: {{ include "nodestack.namespace" .root }}
{{- end }}

{{/* The reference of the operator's or the probe's image. Arguments: root, part, name (of the image). */}}
{{- define "nodestack.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- $repository := get $image.repositories .part | default (printf "%s/%s" $image.repository .name) -}}
{{- with .root.Values.global.imageRegistry -}}
{{- /* As in every image reference, the first part is a registry if it contains a dot or a colon. */ -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^([^/]*[.:][^/]*|localhost)?/" $repository "") -}}
{{- end -}}
{{- if hasPrefix "/" $repository -}}
{{- fail (printf (include "nodestack.noRepository" .root) $tag $tag) -}}
{{- end -}}
{{ $repository }}{{ get $image.digests .part | empty | ternary (printf ":%s" $tag) (printf "@%s" (get $image.digests .part)) }}
{{- end }}

{{/* Not indented, so that the commands can be copied. */}}
{{- define "nodestack.noRepository" }}

image.repository is not set: the operator's two images are not published, so build and push them first, in the root of the repository:

  REPO=registry.example.com/gpu      # a registry that your nodes can pull from
  for IMAGE in gpu-operator nvml-probe; do
    docker build --target $IMAGE --tag $REPO/$IMAGE:%s .
    docker push $REPO/$IMAGE:%s
  done

then install with:  --set image.repository=$REPO
{{ end }}

{{/* Why an upgrade is rejected. Arguments of printf: release, namespace, one of its objects, namespace. */}}
{{- define "nodestack.otherRelease" }}

release %s in namespace %s is not an installation of this chart: it contains %s. An upgrade to this chart would remove its objects;
nothing was changed. Install this chart as a release of its own:

  helm install nodestack charts/gpu-operator --namespace %s --set image.repository=$REPO
{{ end }}

{{/* Why a DeviceClass is not replaced. */}}
{{- define "nodestack.otherDeviceClass" }}

DeviceClass gpu.nvidia.com exists and is not of this chart; nothing was changed. To use it as it is, set:

  --set dra.deviceClass=false

Pods that request nvidia.com/gpu get GPUs of DRA pools only if a DeviceClass has spec.extendedResourceName: nvidia.com/gpu.
{{ end }}

{{- define "nodestack.operatorImage" -}}
{{ include "nodestack.image" (dict "root" . "part" "operator" "name" "gpu-operator") }}
{{- end }}

{{- define "nodestack.probeImage" -}}
{{ include "nodestack.image" (dict "root" . "part" "probe" "name" "nvml-probe") }}
{{- end }}

{{/* A container's HTTP port and its probes. Arguments: root, part (of the values), port (its name). */}}
{{- define "nodestack.served" -}}
{{- $address := (index .root.Values .part).listenAddress -}}
{{- $port := splitList ":" $address | last -}}
{{- $loopback := hasPrefix "127." $address -}}
{{- if and $loopback (not .root.Values.hostNetwork) -}}
{{- fail (printf "%s.listenAddress %s is the pod's loopback address, where kubelet cannot reach /readyz: set 0.0.0.0:%s, or set hostNetwork as well" .part $address $port) -}}
{{- end -}}
ports:
  - name: {{ .port }}
    containerPort: {{ $port | int }}
livenessProbe:
  httpGet:
    path: /livez
    port: {{ .port }}
    {{- if $loopback }}
    host: 127.0.0.1
    {{- end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: {{ .port }}
    {{- if $loopback }}
    host: 127.0.0.1
    {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* The names of all pull secrets, as a JSON array. A secret is a name, or an object with a name as in a pod. */}}
{{- define "nodestack.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (.Values.global.imagePullSecrets | default list) .Values.image.pullSecrets -}}
{{- if kindIs "map" . -}}{{- $names = append $names .name -}}{{- else -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end }}

{{/* A scraped port. Arguments: port, monitor (of the values). */}}
{{- define "nodestack.endpoint" -}}
- port: {{ .port }}
  {{- range $key := list "interval" "scrapeTimeout" "honorLabels" "relabelings" "metricRelabelings" }}
  {{- with index $.monitor $key }}
  {{ $key }}: {{ toJson . }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* The repository of the probe's image, with its registry: see the admission policy of the operator's images. */}}
{{- define "nodestack.probeRepository" -}}
{{- $repository := regexReplaceAll ":[^/:]*$" (include "nodestack.probeImage" . | splitList "@" | first) "" -}}
{{ regexMatch "^([^/]*[.:A-Z][^/]*|localhost)/" $repository | ternary "" "docker.io/" }}{{ $repository }}
{{- end }}

{{/* The names of the chart's ValidatingAdmissionPolicies, and of their bindings, as a JSON array. */}}
{{- define "nodestack.admissionPolicies" -}}
{{- $operator := include "nodestack.operator" . -}}
{{- $names := list (include "nodestack.probe" .) (printf "%s-nodes" $operator) -}}
{{- if or .Values.admission.allowedRegistries .Values.admission.requireDigests -}}
{{- $names = append $names (printf "%s-images" $operator) -}}
{{- end -}}
{{- if .Values.dra.enabled -}}
{{- $names = append $names (include "nodestack.dra-driver" .) -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/*
Variables of an admission policy for Nodes: the fields that an update adds or changes, such as spec.taints, those that it removes, and
whether conditions of other types are left unchanged. Argument: conditions (their types).
*/}}
{{- define "nodestack.nodeChanges" -}}
# dyn: compared as maps with arbitrary keys, so that fields added to the API later are covered automatically.
- name: new
  expression: >-
    {'metadata': dyn(object.metadata), 'spec': has(object.spec) ? dyn(object.spec) : dyn({}),
    'status': has(object.status) ? dyn(object.status) : dyn({})}
- name: old
  expression: >-
    {'metadata': dyn(oldObject.metadata), 'spec': has(oldObject.spec) ? dyn(oldObject.spec) : dyn({}),
    'status': has(oldObject.status) ? dyn(oldObject.status) : dyn({})}
- name: changedOf
  expression: >-
    ['metadata', 'spec', 'status'].map(part, variables.new[part].filter(key, !(key in variables.old[part])
    || variables.new[part][key] != variables.old[part][key]).map(key, part + '.' + string(key)))
- name: removedOf
  expression: >-
    ['metadata', 'spec', 'status'].map(part, variables.old[part].filter(key, !(key in variables.new[part])).map(key,
    part + '.' + string(key)))
- name: changed
  expression: variables.changedOf[0] + variables.changedOf[1] + variables.changedOf[2]
- name: removed
  expression: variables.removedOf[0] + variables.removedOf[1] + variables.removedOf[2]
- name: otherConditions
  expression: >-
    [variables.new, variables.old].map(node, node['status'].?conditions.orValue([]).filter(condition,
    !(condition.type in {{ .conditions | toJson | replace "\"" "'" }})))
# The order of conditions means nothing, and there is one of each type.
- name: otherConditionsStay
  expression: >-
    size(variables.otherConditions[0]) == size(variables.otherConditions[1])
    && variables.otherConditions[0].all(condition, condition in variables.otherConditions[1])
{{- end }}
