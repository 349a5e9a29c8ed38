{{/* Whether clients come from outside of Kubernetes, by a Service for each pod. */}}
{{- define "quarry.isOutside" -}}
{{- if has .Values.advertise.kind (list "node-port" "load-balancer" "ingress") -}}true{{- end -}}
{{- end -}}

{{/* Whether those have a port of their own. */}}
{{- define "quarry.hasOutsidePort" -}}
{{- if and .Values.tls.enabled (include "quarry.isOutside" .) -}}true{{- end -}}
{{- end -}}

{{/* The name within the cluster of the broker of a pod: a Service, whose address stays the same when the pod is replaced. */}}
{{- define "quarry.shardName" -}}
{{ include "quarry.within" (dict "root" . "service" (printf "%s-shard-$(POD_INDEX)" (include "quarry.name" .))) }}
{{- end -}}

{{- define "quarry.shardAddress" -}}
{{ include "quarry.shardName" . }}:8081
{{- end -}}

{{/* The port of load balancers and of the ingress. */}}
{{- define "quarry.outsidePort" -}}
{{- if .Values.advertise.port -}}{{ .Values.advertise.port }}
{{- else if eq .Values.advertise.kind "ingress" -}}443
{{- else if .Values.tls.enabled -}}8443
{{- else -}}8081
{{- end -}}
{{- end -}}

{{/* The one rule: the text that becomes a broker's address, where its clients are; empty for none. */}}
{{- define "quarry.address" -}}
{{ include "quarry.anyAddress" . | replace "$(POD_NAME)" (include "quarry.shard" .) }}
{{- end -}}

{{- define "quarry.anyAddress" -}}
{{- $advertise := .Values.advertise -}}
{{- if $advertise.address -}}{{ $advertise.address }}
{{- else if eq $advertise.kind "pod" -}}{{ include "quarry.shardAddress" . }}
{{- else if eq $advertise.kind "node-port" -}}
{{ $advertise.host | default "$(HOST_IP)" }}:{{ div (int $advertise.nodePort) 10 }}$(POD_INDEX)
{{- else if ne $advertise.kind "dialled" -}}
$(POD_NAME).{{ required "advertise.host is needed: the domain below which each pod has its name" $advertise.host }}:{{ include "quarry.outsidePort" . }}
{{- end -}}
{{- end -}}

{{/* Refuses what does not go together. */}}
{{- define "quarry.check" -}}
{{- $values := .Values -}}
{{- $root := . -}}
{{- if and (eq $values.advertise.kind "dialled") (or (gt (int $values.replicas) 1) (include "quarry.isCluster" .)) -}}
{{- fail "advertise.kind = dialled is for one broker alone: each member of a cluster has an address of its own" -}}
{{- end -}}
{{- if and (gt (int $values.replicas) 1) (not (include "quarry.isCluster" .)) -}}
{{- fail "cluster.enabled = false needs replicas = 1: shards that know nothing of each other are releases of their own" -}}
{{- end -}}
{{- if and (eq $values.advertise.kind "dialled") $values.advertise.address -}}
{{- fail "advertise.kind = dialled and advertise.address are both set" -}}
{{- end -}}
{{- if and (eq $values.advertise.kind "node-port") (gt (int $values.replicas) 10) -}}
{{- fail "advertise.kind = node-port has ports for ten pods" -}}
{{- end -}}
{{- if and (eq $values.advertise.kind "ingress") (not $values.tls.enabled) -}}
{{- fail "advertise.kind = ingress needs tls.enabled: an ingress passes connections through by the name that TLS tells it" -}}
{{- end -}}
{{- if and $values.warmCopies (not $values.operator.enabled) -}}
{{- fail "warmCopies needs operator.enabled: the operator leads clients to the primary of each shard" -}}
{{- end -}}
{{- if and $values.warmCopies (semverCompare "<1.31-0" $root.Capabilities.KubeVersion.Version) -}}
{{- fail "warmCopies needs Kubernetes 1.31 or newer: older ones cannot keep the two pods of a shard on different machines" -}}
{{- end -}}
{{- if and $values.warmCopies (eq $values.advertise.kind "dialled") -}}
{{- fail "advertise.kind = dialled and warmCopies: clients of a copy that was promoted connect to another address" -}}
{{- end -}}
{{- if and $values.follow.from (gt (int $values.replicas) 1) -}}
{{- fail "follow.from needs replicas = 1: one broker of RocketMQ becomes one shard. After the cut-over, remove follow.from, and then raise replicas" -}}
{{- end -}}
{{- if and $values.follow.from $values.warmCopies -}}
{{- fail "follow.from and warmCopies are both set: a copy has no primary before the cut-over. After it, remove follow.from, and then set warmCopies" -}}
{{- end -}}
{{- if and $values.follow.cutOver (not (and $values.follow.from $values.operator.enabled)) -}}
{{- fail "follow.cutOver needs follow.from and operator.enabled: without the operator, kubectl exec orders the cut-over (docs/kubernetes.md)" -}}
{{- end -}}
{{- if and $values.backup.enabled (not $values.backup.destination) -}}
{{- fail "backup.destination is needed: REMOTE:BUCKET/PREFIX" -}}
{{- end -}}
{{- if and $values.backup.enabled (ne $values.store.accessMode "ReadWriteOnce") -}}
{{- fail "backup.enabled needs store.accessMode = ReadWriteOnce: the backup mounts the volume beside its broker" -}}
{{- end -}}
{{- if and $values.backup.contextSecret (not $values.backup.context) -}}
{{- fail "backup.contextSecret needs backup.context: the name of a context in it" -}}
{{- end -}}
{{- if and $values.operator.contextSecret (not $values.operator.context) -}}
{{- fail "operator.contextSecret needs operator.context: the name of a context in it" -}}
{{- end -}}
{{- if and $values.operator.enabled (not $values.operator.contextSecret) (or (include "quarry.hasContext" .) (include "quarry.asksOperators" .)) -}}
{{- fail "operator.contextSecret is needed: the admin port requires TLS or users (docs/operator.md)" -}}
{{- end -}}
{{- $isReached := or (include "quarry.operatorsCallFromPods" .) (include "quarry.consoleIsExposed" .) -}}
{{- if and $isReached (include "quarry.takesStrangers" .) (not .Values.security.openAdmin) -}}
{{- fail "other pods reach the admin port or the console, and nobody is asked who he is: set settings.security.authentication (docs/kubernetes.md, users), or security.openAdmin = true where all who reach it may administer the brokers" -}}
{{- end -}}
{{- end -}}
