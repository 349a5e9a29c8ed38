{{/* What everything is called: the release, with the chart's name where the release does not have it. */}}
{{- define "quarry.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quarry.headless" -}}{{ include "quarry.name" . }}-headless{{- end -}}

{{/* The Service that leads to all brokers that serve: copies have no admin port. */}}
{{- define "quarry.membersService" -}}
{{- if .Values.warmCopies -}}{{ include "quarry.name" . }}-members{{- else -}}{{ include "quarry.headless" . }}{{- end -}}
{{- end -}}

{{- define "quarry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels that all pods with a broker have. */}}
{{- define "quarry.brokers" -}}
{{ include "quarry.selector" . }}
app.kubernetes.io/component: broker
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
{{- if ne .Values.advertise.kind "dialled" -}}true{{- end -}}
{{- else if .Values.cluster.enabled -}}true{{- end -}}
{{- end -}}

{{/* Whether operators call from other pods. */}}
{{- define "quarry.operatorsCallFromPods" -}}
{{- if or .Values.admin.exposed .Values.backup.enabled .Values.operator.enabled -}}true{{- end -}}
{{- end -}}

{{/* Whether other pods reach the admin port: operators, or members of the cluster. */}}
{{- define "quarry.adminIsExposed" -}}
{{- if or (include "quarry.operatorsCallFromPods" .) (include "quarry.isCluster" .) -}}true{{- end -}}
{{- end -}}

{{- define "quarry.consoleIsExposed" -}}
{{- if and .Values.console.enabled .Values.console.exposed -}}true{{- end -}}
{{- end -}}

{{- define "quarry.keySecrets" -}}
{{- if or .Values.security.keySecret .Values.warmCopies (include "quarry.isCluster" .) -}}true{{- end -}}
{{- end -}}

{{/* The number of pods of a stateful set: with an operator it changes the number, and an upgrade leaves it as it is. */}}
{{- define "quarry.replicas" -}}
{{- $root := .root -}}
{{- $found := dict -}}
{{- if $root.Values.operator.enabled -}}
{{- $found = lookup "apps/v1" "StatefulSet" $root.Release.Namespace .set | default dict -}}
{{- end -}}
{{- if $found -}}{{ $found.spec.replicas }}{{- else -}}{{ $root.Values.replicas }}{{- end -}}
{{- end -}}

{{/* The number of pods that need Services and backups: a shard that is to leave is still read. */}}
{{- define "quarry.pods" -}}
{{ max (int .Values.replicas) (include "quarry.replicas" (dict "root" . "set" (include "quarry.name" .)) | int) }}
{{- end -}}

{{/* The names of the stateful sets: the shards, and their copies. */}}
{{- define "quarry.sets" -}}
{{ include "quarry.name" . }}{{ if .Values.warmCopies }} {{ include "quarry.name" . }}-copy{{ end }}
{{- end -}}

{{/* The labels of the pods of a stateful set. */}}
{{- define "quarry.setLabels" -}}
{{ include "quarry.brokers" .root }}
{{- if .root.Values.warmCopies }}
mq.quarry.io/set: {{ ternary "shards" "copies" (eq .set (include "quarry.name" .root)) }}
{{- end }}
{{- end -}}

{{/* The name of the broker of a pod: that of the pod, or the one that it shares with its copy. */}}
{{- define "quarry.shard" -}}
{{- if .Values.warmCopies -}}{{ include "quarry.name" . }}-$(POD_INDEX){{- else -}}$(POD_NAME){{- end -}}
{{- end -}}

{{/* All copies of a shard, as each of them is told. */}}
{{- define "quarry.peers" -}}
{{- $peers := list -}}
{{- range $set := include "quarry.sets" . | splitList " " -}}
{{- $pod := printf "%s-$(POD_INDEX)" $set -}}
{{- $headless := include "quarry.within" (dict "root" $ "service" (include "quarry.headless" $)) -}}
{{- $peers = append $peers (printf "%s=%s.%s:8084" $pod $pod $headless) -}}
{{- end -}}
{{ toJson $peers }}
{{- end -}}

{{/* The labels of the pods that serve clients. The operator gives the last one to the primary of each shard. */}}
{{- define "quarry.serving" -}}
{{ include "quarry.brokers" . }}
{{- if .Values.warmCopies }}
mq.quarry.io/role: primary
{{- end }}
{{- end -}}

{{/* The labels of the pod that serves the clients of a shard. */}}
{{- define "quarry.ofShard" -}}
{{ include "quarry.serving" .root }}
{{- if .root.Values.warmCopies }}
apps.kubernetes.io/pod-index: {{ .index | quote }}
{{- else }}
statefulset.kubernetes.io/pod-name: {{ include "quarry.name" .root }}-{{ .index }}
{{- end }}
{{- end -}}

{{/* Whether commands in the pod have to speak TLS. */}}
{{- define "quarry.hasContext" -}}
{{- if and .Values.tls.enabled .Values.tls.admin -}}true{{- end -}}
{{- end -}}
