{{- define "weft-hub.name" -}}
{{- if contains "weft-hub" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-weft-hub" (.Release.Name | trunc 41 | trimSuffix "-") }}{{- end -}}
{{- end }}

{{- define "weft-hub.selector" -}}
app.kubernetes.io/name: weft-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weft-hub.labels" -}}
{{ include "weft-hub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "weft-hub.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "weft-hub.name" .) }}
{{- end }}

{{- /* hub.yaml: what the operator says, and what follows from the rest of the values. */}}
{{- define "weft-hub.config" -}}
{{- $config := deepCopy .Values.hub }}
{{- $_ := set $config "listen" "*:8090" }}
{{- $_ := set $config "processes" 1 }}
{{- if .Values.tokensSecret }}
{{- $_ := set $config "tokens_file" "/etc/weft-tokens/tokens" }}
{{- else if not (hasKey $config "anonymous") }}
{{- $_ := set $config "anonymous" "never" }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $tls := dict "certificate" "/etc/weft-tls/tls.crt" "key" "/etc/weft-tls/tls.key" }}
{{- if .Values.tls.clientCaSecret }}
{{- $_ := set $tls "client_ca" "/etc/weft-client-ca/ca.crt" }}
{{- $_ := set $tls "client_certificate" .Values.tls.clientCertificate }}
{{- if .Values.tls.hasCrl }}
{{- $_ := set $tls "crl_file" "/etc/weft-client-ca/ca.crl" }}
{{- end }}
{{- end }}
{{- $_ := set $config "tls" $tls }}
{{- else if eq .Values.plainHttp "allowed_beyond_loopback" }}
{{- $_ := set $config "plain_http" "allowed_beyond_loopback" }}
{{- else }}
{{- fail "tokens would cross the cluster's network in clear text. Set tls.secret, or plainHttp: allowed_beyond_loopback" }}
{{- end }}
{{- toYaml $config }}
{{- end }}
