{{/* What everything is called: the release, with the chart's name where the release does not have it. */}}
{{- define "quarry.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quarry.headless" -}}{{ include "quarry.name" . }}-headless{{- end -}}

{{- define "quarry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quarry.labels" -}}
{{ include "quarry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "quarry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* A name within the cluster, of the Service whose short name is given. */}}
{{- define "quarry.within" -}}
{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{- define "quarry.isCluster" -}}
{{- if eq (toString .Values.cluster.enabled) "auto" -}}
{{- if gt (int .Values.replicas) 1 -}}true{{- end -}}
{{- else if .Values.cluster.enabled -}}true{{- end -}}
{{- end -}}

{{/* Whether other pods reach the admin port. */}}
{{- define "quarry.adminIsExposed" -}}
{{- if or .Values.admin.exposed .Values.backup.enabled .Values.operator.enabled (include "quarry.isCluster" .) -}}true{{- end -}}
{{- end -}}

{{- define "quarry.consoleIsExposed" -}}
{{- if and .Values.console.enabled .Values.console.exposed -}}true{{- end -}}
{{- end -}}

{{- define "quarry.keySecrets" -}}
{{- if or .Values.security.keySecret (include "quarry.isCluster" .) -}}true{{- end -}}
{{- end -}}

{{/* Whether commands in the pod have to speak TLS. */}}
{{- define "quarry.hasContext" -}}
{{- if and .Values.tls.enabled .Values.tls.admin -}}true{{- end -}}
{{- end -}}
