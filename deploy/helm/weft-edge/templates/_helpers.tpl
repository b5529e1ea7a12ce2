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

{{- define "weft-edge.config" -}}
{{- toYaml (set (deepCopy .Values.edge) "data_dir" "/var/lib/weft") }}
{{- end }}
