{{- define "gradsieve.labels" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/part-of: gradsieve
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "gradsieve.selector" -}}
app.kubernetes.io/name: {{ .Values.name }}
{{- end }}

{{- define "gradsieve.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Values.name }}
{{- end }}

{{- define "gradsieve.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* Cluster-wide names must differ between operators that serve namespaces of their own. */}}
{{- define "gradsieve.clusterRole" -}}
{{ .Values.name }}{{ if eq .Values.rbac.scope "namespaced" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- /* What every pod of the chart has: the operator's, and those of the hooks. */}}
{{- define "gradsieve.podSettings" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- $nodes := .Values.nodeSelector }}
{{- with .Values.arch }}{{ $nodes = merge (dict "kubernetes.io/arch" .) $nodes }}{{ end }}
{{- with $nodes }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "gradsieve.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Of the hook that applies the definitions; given the weight by which its objects are made in turn. */}}
{{- define "gradsieve.crdsHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "gradsieve.jobRules" -}}
# Jobs and policies. "delete" is for ttlSecondsAfterFinished.
- apiGroups: [gradsieve.io]
  resources: [horovodjobs]
  verbs: [list, watch, delete]
- apiGroups: [gradsieve.io]
  resources: [horovodjobs/status]
  verbs: [patch]
# So that deleting a job in the foreground may wait for children whose owner references block it.
- apiGroups: [gradsieve.io]
  resources: [horovodjobs/finalizers]
  verbs: [update]
- apiGroups: [gradsieve.io]
  resources: [compressionpolicies]
  verbs: [list, watch]
# A job's pods. Where the operator plans, those of others are listed and watched too: it counts what they hold of a node.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, patch, delete]
# A job's other children; the garbage collector deletes them. Of those that are watched only the metadata is asked for.
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Read by name and never listed: that would show all Secrets of a namespace.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "gradsieve.plannerRules" -}}
# What the planner looks at.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- end }}
