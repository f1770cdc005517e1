{{- if eq .Values.extender "beside" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: kyb-scheduler-config
  namespace: kyb-system
data:
  kube-scheduler-config.yaml: |
    # An upstream kube-scheduler under our scheduler name, beside the extender in one pod.
    # The default-scheduler profile is left out on purpose: the cluster's own scheduler keeps it. Whoever
    # runs one scheduler for everything adds `- schedulerName: default-scheduler` to the profiles:
    # extenders are shared by all of them, and pods without a seat never reach ours.
    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    leaderElection:
      leaderElect: true
      resourceNamespace: kyb-system
      resourceName: kybernate-scheduler
    # The extender rules out nodes whose groups don't fit; a sample of the nodes could hide those that do.
    percentageOfNodesToScore: 100
    profiles:
      # DefaultPreemption asks the extender (preemptVerb), which lets it delete those marked kyb.ai/on-preempt: kill, and learns
      # where the pod could run: others are suspended by kyb-controller.
      - schedulerName: kybernate-scheduler
      # The same, for pods that name it.
      - schedulerName: kybernate-preempting
    extenders:
      - urlPrefix: https://127.0.0.1:9444/v1
        filterVerb: filter
        prioritizeVerb: prioritize
        bindVerb: bind
        # Asked by DefaultPreemption.
        preemptVerb: preempt
        weight: 5
        # A bind is at most three calls of the extender's to the API server, 4 s each.
        httpTimeout: 15s
        enableHTTPS: true
        # Without caFile the scheduler would verify nothing, and say nothing about it.
        tlsConfig:
          caFile: /etc/kyb/tls/ca.crt
          certFile: /etc/kyb/tls/scheduler.crt
          keyFile: /etc/kyb/tls/scheduler.key
        nodeCacheCapable: true
        ignorable: false
        # Not ignored by the scheduler: it counts seats per node, and asks only about nodes with one free.
        managedResources:
          - {name: kyb.ai/gpu-1x-seat, ignoredByScheduler: false}
          - {name: kyb.ai/gpu-2x-seat, ignoredByScheduler: false}
          - {name: kyb.ai/gpu-4x-seat, ignoredByScheduler: false}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-scheduler
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-scheduler
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 2
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-scheduler
  strategy:
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 1
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-extender
      automountServiceAccountToken: false
      priorityClassName: system-cluster-critical
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: kyb-scheduler
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: scheduler
        image: '{{ .Values.images.scheduler }}'
        imagePullPolicy: IfNotPresent
        command:
        - kube-scheduler
        args:
        - --config=/etc/kyb/scheduler/kube-scheduler-config.yaml
        - --secure-port=10259
        ports:
        - name: https
          containerPort: 10259
        startupProbe:
          httpGet:
            path: /healthz
            port: https
            scheme: HTTPS
          periodSeconds: 1
          failureThreshold: 60
        livenessProbe:
          httpGet:
            path: /healthz
            port: https
            scheme: HTTPS
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        resources:
          requests:
            cpu: 100m
            memory: 128Mi
          limits:
            memory: 2Gi
        securityContext: &id002
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        volumeMounts:
        - name: config
          mountPath: /etc/kyb/scheduler
          readOnly: true
        - name: scheduler-tls
          mountPath: /etc/kyb/tls
          readOnly: true
        - name: scheduler-token
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
      - name: extender
        image: '{{ include "kybernate.image" (list . "extender") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_EXTENDER_LISTEN
          value: 0.0.0.0:9444
        - name: KYB_EXTENDER_PROBE_LISTEN
          value: 0.0.0.0:9445
        - name: KYB_EXTENDER_SCHEDULER_LEASE
          value: kybernate-scheduler
        ports:
        - name: plans
          containerPort: 9444
        - name: probes
          containerPort: 9445
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
            memory: 1Gi
        securityContext: *id002
        volumeMounts:
        - name: extender-tls
          mountPath: /etc/kyb/tls
          readOnly: true
        - name: extender-token
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
        - name: tmp
          mountPath: /tmp
      volumes:
      - name: config
        configMap:
          name: kyb-scheduler-config
      - name: scheduler-tls
        secret:
          secretName: kyb-scheduler-tls
          defaultMode: 288
      - name: extender-tls
        secret:
          secretName: kyb-extender-tls
          defaultMode: 288
      - name: scheduler-token
        secret:
          secretName: kyb-scheduler-token
          defaultMode: 288
      - name: extender-token
        projected:
          defaultMode: 288
          sources:
          - serviceAccountToken:
              path: token
              expirationSeconds: 3607
          - configMap:
              name: kube-root-ca.crt
              items:
              - key: ca.crt
                path: ca.crt
          - downwardAPI:
              items:
              - path: namespace
                fieldRef:
                  fieldPath: metadata.namespace
      - name: tmp
        emptyDir:
          medium: Memory
          sizeLimit: 16Mi
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kyb-scheduler
  namespace: kyb-system
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-scheduler
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-scheduler
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-scheduler
  policyTypes:
  - Ingress
  ingress:
  - from:
    - podSelector:
        matchLabels:
          app.kubernetes.io/part-of: kybernate
    ports:
    - port: plans
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: https
    - port: probes
---
apiVersion: v1
kind: Service
metadata:
  name: kyb-extender
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    app.kubernetes.io/name: kyb-scheduler
  ports:
  - name: plans
    port: 443
    targetPort: plans
---
apiVersion: v1
kind: Secret
metadata:
  name: kyb-scheduler-token
  namespace: kyb-system
  annotations:
    kubernetes.io/service-account.name: kyb-scheduler
type: kubernetes.io/service-account-token
{{- end }}
