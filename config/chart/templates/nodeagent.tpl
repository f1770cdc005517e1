{{- if and (not .Values.offload.enabled) (not .Values.runtimeWrapper) }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kyb-agent
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-agent
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-agent
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-agent
      automountServiceAccountToken: true
      priorityClassName: system-node-critical
      nodeSelector:
        kyb.ai/gpu-node: 'true'
      tolerations:
      - operator: Exists
      terminationGracePeriodSeconds: 150
      hostPID: true
      runtimeClassName: nvidia
      containers:
      - name: agent
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_AGENT_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        - name: KYB_POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: KYB_AGENT_ADVERTISE
          value: $(KYB_POD_IP):9443
        - name: NVIDIA_VISIBLE_DEVICES
          value: all
        - name: NVIDIA_DRIVER_CAPABILITIES
          value: compute,utility
        ports:
        - name: grpc
          containerPort: 9443
        - name: probes
          containerPort: 9444
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
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 4Gi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          privileged: false
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
            add:
            - SYS_PTRACE
            - DAC_OVERRIDE
            - KILL
            - SYS_ADMIN
            - NET_ADMIN
          seccompProfile:
            type: RuntimeDefault
          appArmorProfile:
            type: Unconfined
        volumeMounts:
        - name: run
          mountPath: /run/kyb
        - name: state
          mountPath: /var/lib/kyb
        - name: cdi
          mountPath: /var/run/cdi
        - name: etc-cdi
          mountPath: /etc/cdi
          readOnly: true
        - name: pod-resources
          mountPath: /var/lib/kubelet/pod-resources
          readOnly: true
        - name: runtime
          mountPath: /run/containerd
          readOnly: true
          mountPropagation: HostToContainer
        - name: cgroups
          mountPath: /sys/fs/cgroup
        - name: tls
          mountPath: /etc/kybernate/tls
          readOnly: true
      volumes:
      - name: run
        hostPath:
          path: /run/kyb
          type: DirectoryOrCreate
      - name: state
        hostPath:
          path: /var/lib/kyb
          type: DirectoryOrCreate
      - name: cdi
        hostPath:
          path: /var/run/cdi
          type: DirectoryOrCreate
      - name: etc-cdi
        hostPath:
          path: /etc/cdi
          type: DirectoryOrCreate
      - name: pod-resources
        hostPath:
          path: '{{ include "kybernate.folder" (list . "podResources") }}'
          type: Directory
      - name: runtime
        hostPath:
          path: '{{ include "kybernate.folder" (list . "runtime") }}'
          type: Directory
      - name: cgroups
        hostPath:
          path: /sys/fs/cgroup
          type: Directory
      - name: tls
        secret:
          secretName: kyb-agent-tls
          defaultMode: 256
{{- end }}
{{- if and .Values.offload.enabled (not .Values.runtimeWrapper) }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kyb-agent
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-agent
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-agent
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-agent
      automountServiceAccountToken: true
      priorityClassName: system-node-critical
      nodeSelector:
        kyb.ai/gpu-node: 'true'
      tolerations:
      - operator: Exists
      terminationGracePeriodSeconds: 150
      hostPID: true
      runtimeClassName: nvidia
      containers:
      - name: agent
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_AGENT_CRIU
          value: /usr/libexec/kybernate/criu
        - name: KYB_AGENT_KYB_ENTER
          value: /usr/libexec/kybernate/kyb-enter
        - name: KYB_AGENT_NVME_DIR
          value: /var/lib/kyb-nvme
        - name: KYB_AGENT_REGISTRY_URL
          value: https://kyb-registry.kyb-system.svc:9446
        - name: KYB_AGENT_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        - name: KYB_POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: KYB_AGENT_ADVERTISE
          value: $(KYB_POD_IP):9443
        - name: NVIDIA_VISIBLE_DEVICES
          value: all
        - name: NVIDIA_DRIVER_CAPABILITIES
          value: compute,utility
        ports:
        - name: grpc
          containerPort: 9443
        - name: probes
          containerPort: 9444
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
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 4Gi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          privileged: false
          allowPrivilegeEscalation: true
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
            add:
            - SYS_PTRACE
            - DAC_OVERRIDE
            - KILL
            - SYS_ADMIN
            - NET_ADMIN
            - CHECKPOINT_RESTORE
            - SYS_RESOURCE
            - IPC_LOCK
            - IPC_OWNER
            - SYS_NICE
            - SYS_TIME
            - NET_RAW
            - SETUID
            - SETGID
            - SETPCAP
            - SETFCAP
            - SYS_CHROOT
            - CHOWN
            - FOWNER
            - FSETID
            - DAC_READ_SEARCH
            - MKNOD
            - NET_BIND_SERVICE
            - AUDIT_WRITE
          seccompProfile:
            type: Unconfined
          appArmorProfile:
            type: Unconfined
        volumeMounts:
        - name: nvme
          mountPath: /var/lib/kyb-nvme
        - name: artifact-keys
          mountPath: /etc/kybernate/artifact-keys
          readOnly: true
        - name: run
          mountPath: /run/kyb
        - name: state
          mountPath: /var/lib/kyb
        - name: cdi
          mountPath: /var/run/cdi
        - name: etc-cdi
          mountPath: /etc/cdi
          readOnly: true
        - name: pod-resources
          mountPath: /var/lib/kubelet/pod-resources
          readOnly: true
        - name: runtime
          mountPath: /run/containerd
          readOnly: true
          mountPropagation: HostToContainer
        - name: cgroups
          mountPath: /sys/fs/cgroup
        - name: tls
          mountPath: /etc/kybernate/tls
          readOnly: true
        envFrom:
        - configMapRef:
            name: kyb-object-store
            optional: true
        - secretRef:
            name: kyb-object-store
            optional: true
      volumes:
      - name: nvme
        hostPath:
          path: '{{ .Values.offload.folder }}'
          type: DirectoryOrCreate
      - name: artifact-keys
        secret:
          secretName: kyb-artifact-keys
          defaultMode: 256
      - name: run
        hostPath:
          path: /run/kyb
          type: DirectoryOrCreate
      - name: state
        hostPath:
          path: /var/lib/kyb
          type: DirectoryOrCreate
      - name: cdi
        hostPath:
          path: /var/run/cdi
          type: DirectoryOrCreate
      - name: etc-cdi
        hostPath:
          path: /etc/cdi
          type: DirectoryOrCreate
      - name: pod-resources
        hostPath:
          path: '{{ include "kybernate.folder" (list . "podResources") }}'
          type: Directory
      - name: runtime
        hostPath:
          path: '{{ include "kybernate.folder" (list . "runtime") }}'
          type: Directory
      - name: cgroups
        hostPath:
          path: /sys/fs/cgroup
          type: Directory
      - name: tls
        secret:
          secretName: kyb-agent-tls
          defaultMode: 256
{{- end }}
{{- if and (not .Values.offload.enabled) .Values.runtimeWrapper }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kyb-agent
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-agent
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-agent
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-agent
      automountServiceAccountToken: true
      priorityClassName: system-node-critical
      nodeSelector:
        kyb.ai/gpu-node: 'true'
      tolerations:
      - operator: Exists
      terminationGracePeriodSeconds: 150
      hostPID: true
      runtimeClassName: nvidia
      containers:
      - name: agent
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_AGENT_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        - name: KYB_POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: KYB_AGENT_ADVERTISE
          value: $(KYB_POD_IP):9443
        - name: NVIDIA_VISIBLE_DEVICES
          value: all
        - name: NVIDIA_DRIVER_CAPABILITIES
          value: compute,utility
        ports:
        - name: grpc
          containerPort: 9443
        - name: probes
          containerPort: 9444
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
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 4Gi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          privileged: false
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
            add:
            - SYS_PTRACE
            - DAC_OVERRIDE
            - KILL
            - SYS_ADMIN
            - NET_ADMIN
          seccompProfile:
            type: RuntimeDefault
          appArmorProfile:
            type: Unconfined
        volumeMounts:
        - name: run
          mountPath: /run/kyb
        - name: state
          mountPath: /var/lib/kyb
        - name: cdi
          mountPath: /var/run/cdi
        - name: etc-cdi
          mountPath: /etc/cdi
          readOnly: true
        - name: pod-resources
          mountPath: /var/lib/kubelet/pod-resources
          readOnly: true
        - name: runtime
          mountPath: /run/containerd
          readOnly: true
          mountPropagation: HostToContainer
        - name: cgroups
          mountPath: /sys/fs/cgroup
        - name: tls
          mountPath: /etc/kybernate/tls
          readOnly: true
      volumes:
      - name: opt
        hostPath:
          path: /opt/kybernate
          type: DirectoryOrCreate
      - name: run
        hostPath:
          path: /run/kyb
          type: DirectoryOrCreate
      - name: state
        hostPath:
          path: /var/lib/kyb
          type: DirectoryOrCreate
      - name: cdi
        hostPath:
          path: /var/run/cdi
          type: DirectoryOrCreate
      - name: etc-cdi
        hostPath:
          path: /etc/cdi
          type: DirectoryOrCreate
      - name: pod-resources
        hostPath:
          path: '{{ include "kybernate.folder" (list . "podResources") }}'
          type: Directory
      - name: runtime
        hostPath:
          path: '{{ include "kybernate.folder" (list . "runtime") }}'
          type: Directory
      - name: cgroups
        hostPath:
          path: /sys/fs/cgroup
          type: Directory
      - name: tls
        secret:
          secretName: kyb-agent-tls
          defaultMode: 256
      initContainers:
      - name: runtime
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        command:
        - python3
        - -c
        - |
          import os, shutil
          folder = "/opt/kybernate/"
          shutil.copy("/usr/libexec/kybernate/kyb-runtime", folder + ".kyb-runtime")
          os.replace(folder + ".kyb-runtime", folder + "kyb-runtime")
          if not os.path.lexists(folder + "kyb-runtime.real"):
              os.symlink(os.environ["RUNC"], folder + "kyb-runtime.real")
        env:
        - name: RUNC
          value: /usr/bin/runc
        resources:
          requests:
            cpu: 10m
            memory: 32Mi
          limits:
            memory: 64Mi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
          seccompProfile:
            type: RuntimeDefault
        volumeMounts:
        - name: opt
          mountPath: /opt/kybernate
{{- end }}
{{- if and .Values.offload.enabled .Values.runtimeWrapper }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kyb-agent
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-agent
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-agent
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-agent
      automountServiceAccountToken: true
      priorityClassName: system-node-critical
      nodeSelector:
        kyb.ai/gpu-node: 'true'
      tolerations:
      - operator: Exists
      terminationGracePeriodSeconds: 150
      hostPID: true
      runtimeClassName: nvidia
      containers:
      - name: agent
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_AGENT_CRIU
          value: /usr/libexec/kybernate/criu
        - name: KYB_AGENT_KYB_ENTER
          value: /usr/libexec/kybernate/kyb-enter
        - name: KYB_AGENT_NVME_DIR
          value: /var/lib/kyb-nvme
        - name: KYB_AGENT_REGISTRY_URL
          value: https://kyb-registry.kyb-system.svc:9446
        - name: KYB_AGENT_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        - name: KYB_POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: KYB_AGENT_ADVERTISE
          value: $(KYB_POD_IP):9443
        - name: NVIDIA_VISIBLE_DEVICES
          value: all
        - name: NVIDIA_DRIVER_CAPABILITIES
          value: compute,utility
        ports:
        - name: grpc
          containerPort: 9443
        - name: probes
          containerPort: 9444
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
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 4Gi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          privileged: false
          allowPrivilegeEscalation: true
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
            add:
            - SYS_PTRACE
            - DAC_OVERRIDE
            - KILL
            - SYS_ADMIN
            - NET_ADMIN
            - CHECKPOINT_RESTORE
            - SYS_RESOURCE
            - IPC_LOCK
            - IPC_OWNER
            - SYS_NICE
            - SYS_TIME
            - NET_RAW
            - SETUID
            - SETGID
            - SETPCAP
            - SETFCAP
            - SYS_CHROOT
            - CHOWN
            - FOWNER
            - FSETID
            - DAC_READ_SEARCH
            - MKNOD
            - NET_BIND_SERVICE
            - AUDIT_WRITE
          seccompProfile:
            type: Unconfined
          appArmorProfile:
            type: Unconfined
        volumeMounts:
        - name: nvme
          mountPath: /var/lib/kyb-nvme
        - name: artifact-keys
          mountPath: /etc/kybernate/artifact-keys
          readOnly: true
        - name: run
          mountPath: /run/kyb
        - name: state
          mountPath: /var/lib/kyb
        - name: cdi
          mountPath: /var/run/cdi
        - name: etc-cdi
          mountPath: /etc/cdi
          readOnly: true
        - name: pod-resources
          mountPath: /var/lib/kubelet/pod-resources
          readOnly: true
        - name: runtime
          mountPath: /run/containerd
          readOnly: true
          mountPropagation: HostToContainer
        - name: cgroups
          mountPath: /sys/fs/cgroup
        - name: tls
          mountPath: /etc/kybernate/tls
          readOnly: true
        envFrom:
        - configMapRef:
            name: kyb-object-store
            optional: true
        - secretRef:
            name: kyb-object-store
            optional: true
      volumes:
      - name: opt
        hostPath:
          path: /opt/kybernate
          type: DirectoryOrCreate
      - name: nvme
        hostPath:
          path: '{{ .Values.offload.folder }}'
          type: DirectoryOrCreate
      - name: artifact-keys
        secret:
          secretName: kyb-artifact-keys
          defaultMode: 256
      - name: run
        hostPath:
          path: /run/kyb
          type: DirectoryOrCreate
      - name: state
        hostPath:
          path: /var/lib/kyb
          type: DirectoryOrCreate
      - name: cdi
        hostPath:
          path: /var/run/cdi
          type: DirectoryOrCreate
      - name: etc-cdi
        hostPath:
          path: /etc/cdi
          type: DirectoryOrCreate
      - name: pod-resources
        hostPath:
          path: '{{ include "kybernate.folder" (list . "podResources") }}'
          type: Directory
      - name: runtime
        hostPath:
          path: '{{ include "kybernate.folder" (list . "runtime") }}'
          type: Directory
      - name: cgroups
        hostPath:
          path: /sys/fs/cgroup
          type: Directory
      - name: tls
        secret:
          secretName: kyb-agent-tls
          defaultMode: 256
      initContainers:
      - name: runtime
        image: '{{ include "kybernate.image" (list . "agent") }}'
        imagePullPolicy: IfNotPresent
        command:
        - python3
        - -c
        - |
          import os, shutil
          folder = "/opt/kybernate/"
          shutil.copy("/usr/libexec/kybernate/kyb-runtime", folder + ".kyb-runtime")
          os.replace(folder + ".kyb-runtime", folder + "kyb-runtime")
          if not os.path.lexists(folder + "kyb-runtime.real"):
              os.symlink(os.environ["RUNC"], folder + "kyb-runtime.real")
        env:
        - name: RUNC
          value: /usr/bin/runc
        resources:
          requests:
            cpu: 10m
            memory: 32Mi
          limits:
            memory: 64Mi
        securityContext:
          runAsUser: 0
          runAsGroup: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
          seccompProfile:
            type: RuntimeDefault
        volumeMounts:
        - name: opt
          mountPath: /opt/kybernate
{{- end }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-agent
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-agent
  policyTypes:
  - Ingress
  ingress:
  - from:
    - podSelector:
        matchLabels:
          app.kubernetes.io/part-of: kybernate
    ports:
    - port: grpc
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: probes
