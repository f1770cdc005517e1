{{- if eq .Values.registry "sqlite" }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: kyb-registry
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 2Gi
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: kyb-registry
  namespace: kyb-system
  labels: &id001
    app.kubernetes.io/name: kyb-registry
    app.kubernetes.io/part-of: kybernate
spec:
  replicas: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: kyb-registry
  strategy:
    type: Recreate
  template:
    metadata:
      labels: *id001
    spec:
      serviceAccountName: kyb-registry
      automountServiceAccountToken: true
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: registry
        image: '{{ include "kybernate.image" (list . "registry") }}'
        imagePullPolicy: IfNotPresent
        env:
        - name: KYB_REGISTRY_LISTEN
          value: 0.0.0.0:9446
        - name: KYB_REGISTRY_PROBE_LISTEN
          value: 0.0.0.0:9447
        - name: KYB_REGISTRY_SIGNER_DIR
          value: /etc/kyb/signer
        - name: KYB_REGISTRY_DATABASE
          value: sqlite:////var/lib/kyb/registry/registry.db
        envFrom:
        - secretRef:
            name: kyb-registry-object-store
            optional: true
        ports:
        - name: https
          containerPort: 9446
        - name: probes
          containerPort: 9447
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
          timeoutSeconds: 6
        resources:
          requests:
            cpu: 100m
            memory: 192Mi
          limits:
            memory: 1Gi
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        volumeMounts:
        - name: tls
          mountPath: /etc/kyb/tls
          readOnly: true
        - name: signer
          mountPath: /etc/kyb/signer
          readOnly: true
        - name: keys
          mountPath: /etc/kyb/keys
          readOnly: true
        - name: wrap-keys
          mountPath: /etc/kyb/wrap-keys
          readOnly: true
        - name: data
          mountPath: /var/lib/kyb/registry
        - name: tmp
          mountPath: /tmp
      volumes:
      - name: tls
        secret:
          secretName: kyb-registry-tls
          defaultMode: 288
      - name: signer
        secret:
          secretName: kyb-agents-ca
          defaultMode: 288
          optional: true
      - name: keys
        secret:
          secretName: kyb-artifact-trust
          defaultMode: 288
          optional: true
      - name: wrap-keys
        secret:
          secretName: kyb-wrap-keys
          defaultMode: 288
          optional: true
      - name: data
        persistentVolumeClaim:
          claimName: kyb-registry
      - name: tmp
        emptyDir:
          medium: Memory
          sizeLimit: 64Mi
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: kyb-registry
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: kyb-registry
  policyTypes:
  - Ingress
  ingress:
  - from:
    - podSelector:
        matchLabels:
          app.kubernetes.io/part-of: kybernate
    ports:
    - port: https
  - from:
    - namespaceSelector:
        matchLabels:
          kyb.ai/scrapes: 'true'
    ports:
    - port: probes
---
apiVersion: v1
kind: Service
metadata:
  name: kyb-registry
  namespace: kyb-system
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  selector:
    app.kubernetes.io/name: kyb-registry
  ports:
  - name: https
    port: 9446
    targetPort: https
{{- end }}
