{{- define "weft-edge.name" -}}
{{- if contains "weft-edge" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-weft-edge" (.Release.Name | trunc 40 | trimSuffix "-") }}{{- end -}}
{{- end }}

{{- define "weft-edge.selector" -}}
app.kubernetes.io/name: weft-edge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weft-edge.labels" -}}
{{ include "weft-edge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Values that are valid one by one, and do not go together. */}}
{{- define "weft-edge.check" -}}
{{- if hasKey .Values.edge "data_dir" }}
{{- fail "edge.data_dir: the chart writes this setting: it is the volume of storage" }}
{{- end }}
{{- $listeners := .Values.edge.listeners | default dict }}
{{- range $name := keys .Values.ports | sortAlpha }}
{{- $listener := get $listeners $name | default dict }}
{{- if not (hasKey $listeners $name) }}
{{- fail (printf "ports.%s: edge.listeners has no %s, so nothing would answer there" $name $name) }}
{{- end }}
{{- if and (ne $.Values.service.type "ClusterIP") (not $listener.tls) (ne $.Values.plainText "allowed_beyond_cluster") }}
{{- fail (printf "service.type: a %s would carry passwords of listener %s over the network in clear text. Set edge.listeners.%s.tls, or take ClusterIP, or set plainText: allowed_beyond_cluster" $.Values.service.type $name $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weft-edge.config" -}}
{{- include "weft-edge.check" . }}
{{- toYaml (set (deepCopy .Values.edge) "data_dir" "/var/lib/weft") }}
{{- end }}
