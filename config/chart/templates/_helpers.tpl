{{/* What the templates beside this file call, which `make chart` makes of config/. */}}
{{- define "kybernate.image" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{ $root.Values.images.prefix }}{{ $name }}:{{ $root.Values.images.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- define "kybernate.folder" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $runtime := dict "containerd" "/run/containerd" "k3s" "/run/k3s/containerd" -}}
{{- $runtime = set $runtime "microk8s" "/var/snap/microk8s/common/run" -}}
{{- $kubelet := dict "microk8s" "/var/snap/microk8s/common/var/lib/kubelet" -}}
{{- if eq $name "runtime" -}}
{{ get $runtime $root.Values.distribution }}
{{- else -}}
{{ get $kubelet $root.Values.distribution | default "/var/lib/kubelet" }}/pod-resources
{{- end -}}
{{- end -}}
{{- define "kybernate.seats" -}}
{{ if .Values.seats }}{{ toYaml .Values.seats }}{{ else }}{{ .Files.Get "files/seats.yaml" }}{{ end }}
{{- end -}}
