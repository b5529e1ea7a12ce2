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

{{- /* Values that are valid one by one, and do not go together. */}}
{{- define "weft-hub.check" -}}
{{- $written := dict
  "listen" "a pod listens at port 8090, and service.port is the port before it"
  "tls" "name the secrets under tls"
  "processes" "a pod is one process, and replicas is their number"
  "advertise" "set advertise beside hub"
  "plain_http" "set plainHttp" }}
{{- range $name, $instead := $written }}
{{- if hasKey $.Values.hub $name }}
{{- fail (printf "hub.%s: the chart writes this setting: %s" $name $instead) }}
{{- end }}
{{- end }}
{{- if and .Values.tls.clientCaSecret (not .Values.tls.secret) }}
{{- fail "tls.clientCaSecret: needs tls.secret: without the hub's own certificate there is no TLS" }}
{{- end }}
{{- if and .Values.tls.hasCrl (not .Values.tls.clientCaSecret) }}
{{- fail "tls.hasCrl: needs tls.clientCaSecret, which has the list under ca.crl" }}
{{- end }}
{{- if .Values.advertise }}
{{- if and .Values.tls.secret (hasPrefix "http:" .Values.advertise) }}
{{- fail "advertise: begins with http:, and with tls.secret a pod takes nothing but https:" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not (contains "$(POD)" .Values.advertise)) }}
{{- fail "advertise: is the same URL for all pods. Write $(POD) for the name of each: https://$(POD).hubs.example.com:8090" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* hub.yaml: what the operator says, and what follows from the rest of the values. */}}
{{- define "weft-hub.config" -}}
{{- include "weft-hub.check" . }}
{{- $config := deepCopy .Values.hub }}
{{- $_ := set $config "listen" "*:8090" }}
{{- $_ := set $config "processes" 1 }}
{{- if not (hasKey $config "anonymous") }}
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
{{- fail "tls.secret: is missing, so tokens would cross the cluster's network in clear text. Set it, or plainHttp: allowed_beyond_loopback" }}
{{- end }}
{{- toYaml $config }}
{{- end }}
