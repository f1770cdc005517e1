---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: kyb-device-plugin
  namespace: kyb-system
automountServiceAccountToken: false
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: kyb-deviceplugin-config
  namespace: kyb-system
  labels:
    app.kubernetes.io/name: kyb-device-plugin
    app.kubernetes.io/part-of: kybernate
data:
  config.yaml: |
    {{- include "kybernate.seats" . | trim | nindent 4 }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kyb-device-plugin
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-device-plugin
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-device-plugin
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-device-plugin
      automountServiceAccountToken: false
      priorityClassName: system-node-critical
      nodeSelector:
        kyb.ai/gpu-node: 'true'
      tolerations:
      - operator: Exists
      terminationGracePeriodSeconds: 10
      runtimeClassName: nvidia
      containers:
      - name: plugin
        image: '{{ include "kybernate.image" (list . "device-plugin") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_DEVICE_PLUGIN_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        - name: KYB_DEVICE_PLUGIN_PROFILES
          value: /etc/kybernate/plugin/config.yaml
        - name: KYB_DEVICE_PLUGIN_PROBE_LISTEN
          value: 0.0.0.0:9821
        - name: NVIDIA_VISIBLE_DEVICES
          value: all
        - name: NVIDIA_DRIVER_CAPABILITIES
          value: utility
        ports:
        - name: probes
          containerPort: 9821
        startupProbe:
          httpGet:
            path: /healthz
            port: probes
          periodSeconds: 1
          failureThreshold: 60
        livenessProbe:
          httpGet:
            path: /healthz
            port: probes
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet:
            path: /readyz
            port: probes
          periodSeconds: 2
          timeoutSeconds: 2
        resources:
          requests:
            cpu: 20m
            memory: 96Mi
          limits:
            memory: 256Mi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          privileged: false
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
          seccompProfile:
            type: RuntimeDefault
        volumeMounts:
        - name: device-plugins
          mountPath: /var/lib/kubelet/device-plugins
        - name: run
          mountPath: /run/kyb
          readOnly: true
        - name: memory
          mountPath: /var/lib/kyb/plugin
        - name: config
          mountPath: /etc/kybernate/plugin
          readOnly: true
      volumes:
      - name: device-plugins
        hostPath:
          path: /var/lib/kubelet/device-plugins
          type: Directory
      - name: run
        hostPath:
          path: /run/kyb
          type: DirectoryOrCreate
      - name: memory
        hostPath:
          path: /var/lib/kyb/plugin
          type: DirectoryOrCreate
      - name: config
        configMap:
          name: kyb-deviceplugin-config
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-device-plugin
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-device-plugin
  policyTypes:
  - Ingress
  ingress:
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: probes
