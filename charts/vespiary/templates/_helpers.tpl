{{- define "vespiary.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "vespiary.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := include "vespiary.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "vespiary.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vespiary.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "vespiary.labels" -}}
{{ include "vespiary.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "vespiary.tuningNamespace" -}}
{{- default (printf "%s-node-tuning" (include "vespiary.fullname" .)) .Values.nodeTuning.namespace }}
{{- end }}

{{- /* Spec of the BrokerNodeTuning `default`, which the operator makes. Helm looks up every kind before
it has made the definitions, and a hook would be deleted and made anew at each upgrade. */ -}}
{{- define "vespiary.defaultTuning" -}}
{{- $values := .Values.nodeTuning }}
{{- if and $values.floor $values.max (gt (int64 $values.floor) (int64 $values.max)) }}
{{- fail (printf "nodeTuning.floor is %d, above nodeTuning.max, which is %d: lower the one or raise the other." (int64 $values.floor) (int64 $values.max)) }}
{{- end }}
{{- $spec := pick $values "mode" "floor" "margin" "max" }}
{{- range $name := list "nodeSelector" "tolerations" }}
{{- with index $values $name }}
{{- $_ := set $spec $name . }}
{{- end }}
{{- end }}
{{- toJson $spec }}
{{- end }}

{{- /* Fails when the Prometheus operator's API is not there: nothing is left out in silence. */ -}}
{{- define "vespiary.needsMonitoring" -}}
{{- $root := index . 1 }}
{{- if not ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}
{{- fail (printf "%s needs the API monitoring.coreos.com/v1, which the cluster does not serve. Install the Prometheus operator first, or switch it off; `helm template` takes --api-versions monitoring.coreos.com/v1." (index . 0)) }}
{{- end }}
{{- end }}

{{- define "vespiary.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "vespiary.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "vespiary.image" -}}
{{- $image := index . 0 }}
{{- $root := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{- define "vespiary.testLabels" -}}
app.kubernetes.io/name: {{ include "vespiary.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: check
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The rest of a pod that runs one command of the operator's image and ends. */ -}}
{{- define "vespiary.checkPod" -}}
{{- $root := index . 0 -}}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: check
    image: {{ include "vespiary.image" (list $root.Values.image $root) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args: {{ index . 1 | toJson }}
    env:
      - name: VESPIARY_OWN_NAMESPACE
        valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
      {{- if eq $root.Values.scope "namespaces" }}
      - name: VESPIARY_NAMESPACES
        value: {{ join "," (default (list $root.Release.Namespace) $root.Values.namespaces) | quote }}
      {{- end }}
    resources:
      requests: {cpu: 20m, memory: 96Mi, ephemeral-storage: 16Mi}
      limits: {memory: 256Mi, ephemeral-storage: 64Mi}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      readOnlyRootFilesystem: true
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 32Mi}
{{- end }}
