{{/* The user of the image, who owns the volume. */}}
{{- define "quarry.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "quarry.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "quarry.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if and .root.Values.tls.enabled .root.Values.tls.http }}
  scheme: HTTPS
  {{- end }}
{{- end -}}

{{- define "quarry.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end -}}
{{- end -}}
