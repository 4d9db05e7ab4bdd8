{{/* Names are fixed: only one installation per cluster is supported, and the operator finds its components by name. */}}

{{- define "gpu-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpu-operator
{{- end }}

{{/* Pod labels: only those that are the same in every chart version, so that an upgrade does not recreate pods needlessly. */}}
{{- define "gpu-operator.podLabels" -}}
app.kubernetes.io/part-of: gpu-operator
{{- end }}

{{/* The reference of the operator's or the probe's image. Arguments: root, name (of the image), digest. */}}
{{- define "gpu-operator.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- if not $image.repository -}}
{{- fail (printf (include "gpu-operator.noRepository" .root) $tag $tag) -}}
{{- end -}}
{{- if .digest -}}
{{ printf "%s/%s@%s" $image.repository .name .digest }}
{{- else -}}
{{ printf "%s/%s:%s" $image.repository .name $tag }}
{{- end -}}
{{- end }}

{{/* Not indented, so that the commands can be copied. */}}
{{- define "gpu-operator.noRepository" }}

image.repository is not set: the operator's two images are not published, so build and push them first, in the root of the repository:

  REPO=registry.example.com/gpu      # a registry that your nodes can pull from
  cargo build --release
  for BINARY in gpu-operator nvml-probe; do
    docker build --build-arg BINARY=$BINARY -t $REPO/$BINARY:%s -f Dockerfile target/release
    docker push $REPO/$BINARY:%s
  done

then install with:  --set image.repository=$REPO
{{ end }}

{{- define "gpu-operator.operatorImage" -}}
{{ include "gpu-operator.image" (dict "root" . "name" "gpu-operator" "digest" .Values.image.digests.operator) }}
{{- end }}

{{- define "gpu-operator.probeImage" -}}
{{ include "gpu-operator.image" (dict "root" . "name" "nvml-probe" "digest" .Values.image.digests.probe) }}
{{- end }}

{{/* A container's HTTP port and its probes. Arguments: root, part (of the values), port (its name). */}}
{{- define "gpu-operator.served" -}}
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

{{- define "gpu-operator.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
