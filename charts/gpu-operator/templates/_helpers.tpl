{{/* Names are fixed: there is one installation per cluster, and the operator looks for its parts by name. */}}

{{- define "gpu-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpu-operator
{{- end }}

{{/* Of pods: only what does not change from chart to chart, so that an upgrade recreates no pod without need. */}}
{{- define "gpu-operator.podLabels" -}}
app.kubernetes.io/part-of: gpu-operator
{{- end }}

{{/* The reference of one of our images. Arguments: root, name (of the image), digest. */}}
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

{{/* In one piece, so that it can be read and copied. */}}
{{- define "gpu-operator.noRepository" }}

image.repository is not set: our two images are not published, so build and push them first, in the root of the repository:

  REPO=registry.example.com/gpu      # a registry that your nodes can pull from
  cargo build --release
  for BINARY in gpu-operator nvml-probe; do
    docker build --build-arg BINARY=$BINARY -t $REPO/$BINARY:%s -f Dockerfile target/release
    docker push $REPO/$BINARY:%s
  done

and then install with:  --set image.repository=$REPO
{{ end }}

{{- define "gpu-operator.operatorImage" -}}
{{ include "gpu-operator.image" (dict "root" . "name" "gpu-operator" "digest" .Values.image.digests.operator) }}
{{- end }}

{{- define "gpu-operator.probeImage" -}}
{{ include "gpu-operator.image" (dict "root" . "name" "nvml-probe" "digest" .Values.image.digests.probe) }}
{{- end }}

{{/* What a container serves over HTTP, and how kubelet asks it. Arguments: root, part (of the values), port (its name). */}}
{{- define "gpu-operator.served" -}}
{{- $address := (index .root.Values .part).listenAddress -}}
{{- $port := splitList ":" $address | last -}}
{{- $loopback := hasPrefix "127." $address -}}
{{- if and $loopback (not .root.Values.hostNetwork) -}}
{{- fail (printf "%s.listenAddress %s is the pod's own loopback, where kubelet cannot reach /readyz: write 0.0.0.0:%s, or set hostNetwork as well" .part $address $port) -}}
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
