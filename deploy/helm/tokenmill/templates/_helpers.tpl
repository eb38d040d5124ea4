{{- define "tokenmill.name" -}}
{{- if contains "tokenmill" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-tokenmill{{ end -}}
{{- end }}

{{- define "tokenmill.selector" -}}
app.kubernetes.io/name: tokenmill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tokenmill.labels" -}}
{{ include "tokenmill.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "tokenmill.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "tokenmill.name" .) -}}
{{- end }}

{{/* image, root. */}}
{{- define "tokenmill.image" -}}
{{- with .image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* JSON's numbers, texts, booleans and lists are TOML's. */}}
{{- define "tokenmill.toml" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{ .Values.toml }}
{{- end }}

{{/* What all pods have in common; component, root. */}}
{{- define "tokenmill.podMetadata" -}}
labels:
  {{- include "tokenmill.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  checksum/settings: {{ include "tokenmill.toml" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- define "tokenmill.pod" -}}
serviceAccountName: {{ include "tokenmill.serviceAccount" . }}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tokenmill.volumes" -}}
- name: settings
  configMap: {name: {{ include "tokenmill.name" . }}}
- name: tmp
  emptyDir: {sizeLimit: 4Gi} # a window of 100 million documents
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tokenmill.secured" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "tokenmill.secretVariables" -}}
{{- range $variable, $from := . }}
- name: {{ $variable }}
  valueFrom: {secretKeyRef: {{ toJson $from }}}
{{- end }}
{{- end }}

{{- define "tokenmill.container" -}}
image: {{ include "tokenmill.image" (dict "image" .Values.image "root" .) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "tokenmill.secured" . }}
env:
  - {name: TOKENMILL_CONFIG, value: /etc/tokenmill/tokenmill.toml}
  - {name: TOKENMILL_METRICS_HOST, value: 0.0.0.0}
  - {name: TOKENMILL_METRICS_PORT, value: "9464"}
  - {name: TOKENMILL_LOG_FORMAT, value: json}
  {{- include "tokenmill.secretVariables" .Values.secretVariables | nindent 2 }}
{{- end }}

{{- define "tokenmill.mounts" -}}
- {name: settings, mountPath: /etc/tokenmill, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A worker that stands still is the supervisor's business; the kubelet ends a supervisor that does not answer. */}}
{{- define "tokenmill.probes" -}}
ports: [{name: metrics, containerPort: 9464}]
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
