{{/* What the chart says, over which values may not go. */}}
{{- define "quarry.ownSettings" -}}
{{- $tls := .Values.tls -}}
store:
  directory: /var/lib/quarry/store
network:
  listen: 0.0.0.0:8081
  {{- if include "quarry.adminIsExposed" . }}
  admin: 0.0.0.0:8082
  {{- else }}
  admin: 127.0.0.1:8082
  {{- end }}
  http: 0.0.0.0:9464
  {{- if not .Values.console.enabled }}
  console: "off"
  {{- else }}
  console: {{ ternary "0.0.0.0" "127.0.0.1" .Values.console.exposed }}:{{ .Values.console.port }}
  console_hosts: {{ toJson .Values.console.hosts }}
  {{- end }}
  {{- if $tls.enabled }}
  tls: {{ $tls.messaging }}
  {{- if include "quarry.hasOutsidePort" . }}
  tls_listen: 0.0.0.0:8443
  {{- end }}
  tls_certificate: /etc/quarry-tls/tls.crt
  tls_key: /etc/quarry-tls/tls.key
  admin_tls: {{ $tls.admin }}
  http_tls: {{ $tls.http }}
  {{- if include "quarry.consoleIsExposed" . }}
  console_tls: {{ $tls.console }}
  {{- end }}
  {{- end }}
  {{- $plain := list }}
  {{- if not (and $tls.enabled (eq $tls.messaging "required")) }}{{ $plain = append $plain "listen" }}{{ end }}
  {{- if and (include "quarry.adminIsExposed" .) (not (and $tls.enabled $tls.admin)) }}{{ $plain = append $plain "admin" }}{{ end }}
  {{- if not (and $tls.enabled $tls.http) }}{{ $plain = append $plain "http" }}{{ end }}
  {{- if .Values.warmCopies }}
  replication: 0.0.0.0:8084
  replication_tls: {{ $tls.enabled }}
  {{- if not $tls.enabled }}{{ $plain = append $plain "replication" }}{{ end }}
  {{- end }}
  {{- if and (include "quarry.consoleIsExposed" .) (not (and $tls.enabled $tls.console)) }}{{ $plain = append $plain "console" }}{{ end }}
  {{- if $plain }}
  plain_text: {{ toJson $plain }}
  {{- end }}
{{- if include "quarry.isCluster" . }}
cluster:
  dns: {{ include "quarry.within" (dict "root" . "service" (include "quarry.membersService" .)) }}:8082
  key_file: /run/quarry/cluster.key
  ready_delay_ms: {{ dig "cluster" "ready_delay_ms" 10000 .Values.settings }}
  leave_delay_ms: {{ include "quarry.leaveDelay" . }}
  {{- if and $tls.enabled $tls.admin }}
  tls_ca: /etc/quarry-tls/ca.crt
  {{- end }}
{{- end }}
{{- if .Values.warmCopies }}
replication:
  mode: async
  key_file: /run/quarry/replication.key
  {{- if $tls.enabled }}
  tls_ca: /etc/quarry-tls/ca.crt
  {{- end }}
{{- end }}
{{- $isOpen := and .Values.security.openAdmin (include "quarry.takesStrangers" .) }}
{{- $isForMembers := and (not $isOpen) (include "quarry.takesStrangers" .) }}
{{- if or .Values.security.keySecret $isOpen $isForMembers }}
security:
  {{- if .Values.security.keySecret }}
  key_file: /run/quarry/security.key
  {{- end }}
  {{- if $isOpen }}
  open_admin: true
  {{- end }}
  {{- if $isForMembers }}
  admin_callers: this-machine
  {{- end }}
{{- end }}
{{- end -}}

{{/* Milliseconds that a member serves after it has left its cluster for a stop. */}}
{{- define "quarry.leaveDelay" -}}
{{- if include "quarry.isCluster" . }}{{ dig "cluster" "leave_delay_ms" 35000 .Values.settings }}{{ else }}0{{ end -}}
{{- end -}}

{{/* Whether other pods reach the admin port or the console and nobody is asked who he is. */}}
{{- define "quarry.takesStrangers" -}}
{{- if and (or (include "quarry.adminIsExposed" .) (include "quarry.consoleIsExposed" .)) (not (include "quarry.asksOperators" .)) -}}true{{- end -}}
{{- end -}}

{{/* Whether callers of the admin port have to be users. */}}
{{- define "quarry.asksOperators" -}}
{{- $security := default dict .Values.settings.security -}}
{{- if hasKey $security "admin_authentication" -}}
{{- if $security.admin_authentication -}}true{{- end -}}
{{- else if $security.authentication -}}true{{- end -}}
{{- end -}}

{{/* Of these the chart has values of its own, or the pod's environment says them. */}}
{{- define "quarry.reserved" -}}
store.directory network.listen network.admin network.http network.advertise network.tls network.tls_listen
network.console network.console_hosts network.console_tls network.tls_advertise network.tls_certificate network.tls_key network.admin_tls network.http_tls network.plain_text
network.replication network.replication_tls replication.mode replication.replica replication.peers replication.key_file replication.tls_ca
broker.name cluster.advertise cluster.dns cluster.members cluster.key_file cluster.tls_ca security.key_file security.key security.open_admin security.admin_callers
{{- end -}}

{{- define "quarry.value" -}}
{{- if kindIs "string" . -}}{{ toRawJson . }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else if kindIs "slice" . -}}
[{{ range $at, $each := . }}{{ if $at }}, {{ end }}{{ include "quarry.value" $each }}{{ end }}]
{{- else if eq (floor .) (float64 .) -}}{{ printf "%.0f" (float64 .) }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{- define "quarry.toml" -}}
{{- $reserved := splitList " " (include "quarry.reserved" . | replace "\n" " ") -}}
{{- range $section, $settings := .Values.settings -}}
{{- range $key, $value := $settings -}}
{{- if has (printf "%s.%s" $section $key) $reserved -}}
{{- fail (printf "settings.%s.%s: the chart says this one, by other values" $section $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $settings := mustMergeOverwrite (deepCopy .Values.settings) (include "quarry.ownSettings" . | fromYaml) -}}
{{- range $section, $values := $settings }}
[{{ $section }}]
{{- range $key, $value := $values }}
{{ $key }} = {{ include "quarry.value" $value }}
{{- end }}
{{ end -}}
{{- end -}}
