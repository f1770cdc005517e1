---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-agent-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods
      - pods/status
      scope: Namespaced
  matchConditions:
  - name: agent
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-agent'
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: oldObject.metadata.?annotations.orValue({})
  validations:
  - expression: object.spec == oldObject.spec && object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && object.metadata.?finalizers.orValue([])
      == oldObject.metadata.?finalizers.orValue([]) && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([]) && variables.now.all(k,
      k in ['kyb.ai/seat', 'kyb.ai/touched-at', 'kyb.ai/requests'] || (k in variables.before && variables.before[k] == variables.now[k])) && variables.before.all(k,
      k in ['kyb.ai/seat', 'kyb.ai/touched-at', 'kyb.ai/requests'] || k in variables.now)
    reason: Forbidden
    message: the agent may change nothing of a pod but the annotations kyb.ai/seat, kyb.ai/touched-at and kyb.ai/requests
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-agent-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-agent-account
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-agent-resize
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods/resize
      scope: Namespaced
  matchConditions:
  - name: agent
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-agent'
  validations:
  - expression: '''kyb.ai/seat'' in oldObject.metadata.?annotations.orValue({}) && object.spec.containers.all(c, oldObject.spec.containers.exists(b, b.name == c.name
      && c.?resources.?limits.orValue({}) == b.?resources.?limits.orValue({}))) && object.spec.?initContainers.orValue([]) == oldObject.spec.?initContainers.orValue([])'
    reason: Forbidden
    message: the agent may resize only pods with a seat, and no limits
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-agent-resize
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-agent-resize
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-agent-node
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods
      - pods/status
      - pods/resize
      scope: Namespaced
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - gpunodes
      - gpunodes/status
      scope: Cluster
  matchConditions:
  - name: agent
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-agent'
  - name: of-a-node
    expression: '''authentication.kubernetes.io/node-name'' in request.userInfo.extra'
  variables:
  - name: own
    expression: request.userInfo.extra['authentication.kubernetes.io/node-name']
  - name: touched
    expression: 'request.resource.resource == ''pods'' ? dyn(oldObject).spec.?nodeName.orValue('''') : object.metadata.name'
  validations:
  - expression: variables.own == [variables.touched]
    reason: Forbidden
    messageExpression: '''the agent of node '' + variables.own.join('', '') + '' may change neither pods nor the GPUNode of other nodes'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-agent-node
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-agent-node
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-agent-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - certificates.k8s.io
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - certificatesigningrequests
      scope: Cluster
  matchConditions:
  - name: agent
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-agent'
  validations:
  - expression: object.spec.signerName == 'kyb.ai/agent'
    reason: Forbidden
    message: the agent may ask for certificates of the signer kyb.ai/agent alone
  - expression: '''authentication.kubernetes.io/node-name'' in request.userInfo.extra'
    reason: Forbidden
    message: its token names no node; use the token of the agent's own pod
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-agent-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-agent-requests
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-artifact-grants
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - artifactgrants
      scope: Namespaced
  validations:
  - expression: '!(request.namespace in object.spec.to)'
    messageExpression: '''spec.to names '' + request.namespace + '', where the ArtifactGrant lies itself; it lies in the '' + ''namespace whose states it gives, and
      names the namespaces that may restore them'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-artifact-grants
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-artifact-grants
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-artifacts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - artifacts
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes an Artifact
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-artifacts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-artifacts
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-restore-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - restorerequests
      scope: Namespaced
  variables:
  - name: source
    expression: object.spec.source
  - name: artifacts
    expression: authorizer.group('kyb.ai').resource('artifacts').namespace(request.namespace)
  - name: foreign
    expression: variables.source.?namespace.orValue(request.namespace) != request.namespace
  - name: mayRestore
    expression: 'variables.foreign ? true : has(variables.source.artifact) ? variables.artifacts.name(variables.source.artifact).check(''restore'').allowed() : variables.artifacts.check(''restore'').allowed()'
  validations:
  - expression: oldObject == null || object.spec == oldObject.spec
    reason: Forbidden
    message: a RestoreRequest is done once, as it was written; delete it and create another
  - expression: oldObject != null || object.spec.?requestedBy.orValue('') == request.userInfo.username
    reason: Forbidden
    message: spec.requestedBy is written by the Kybernate webhook, which did not see this request; see whether its MutatingWebhookConfiguration has sign.requests.kyb.ai
  - expression: oldObject != null || authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not ask for a pod: that takes the right to create pods in namespace '' + request.namespace'
  - expression: oldObject != null || variables.mayRestore
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not restore '' + variables.source.?artifact.orValue( has(variables.source.template) ? ''the artifact of
      a SnapshotTemplate'' : ''the newest artifact of a pod'') + '': that takes the verb restore on artifacts.kyb.ai in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-restore-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-restore-requests
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-restore-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - restorerequests/status
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes the status of a RestoreRequest
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-restore-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-restore-statuses
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-tier-placements
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - tierplacements
      scope: Namespaced
  validations:
  - expression: (oldObject != null && oldObject.spec == object.spec) || authorizer.group('kyb.ai').resource('artifacts').namespace(request.namespace).check('restore').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not say where artifacts lie: that takes the verb restore on artifacts.kyb.ai in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-tier-placements
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-tier-placements
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-tier-placement-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - tierplacements/status
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes the status of a TierPlacement
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-tier-placement-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-tier-placement-statuses
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-restore-from
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      - UPDATE
      resources:
      - pods
      - pods/status
      - pods/resize
      - pods/ephemeralcontainers
      - pods/binding
      - bindings
      - replicationcontrollers
      scope: Namespaced
    - apiGroups:
      - apps
      apiVersions:
      - v1
      operations:
      - CREATE
      - UPDATE
      resources:
      - controllerrevisions
      - daemonsets
      - deployments
      - replicasets
      - statefulsets
      scope: Namespaced
    - apiGroups:
      - batch
      apiVersions:
      - v1
      operations:
      - CREATE
      - UPDATE
      resources:
      - cronjobs
      - jobs
      scope: Namespaced
  variables:
  - name: field
    expression: 'request.kind.kind in [''Pod'', ''Binding''] ? ''metadata.annotations'' : request.kind.kind == ''CronJob'' ? ''spec.jobTemplate.spec.template.metadata.annotations''
      : request.kind.kind == ''ControllerRevision'' ? ''data.spec.template.metadata.annotations'' : ''spec.template.metadata.annotations'''
  - name: notes
    expression: '[object, oldObject].map(one, one == null ? {} : variables.field == ''metadata.annotations'' ? one.metadata.?annotations.orValue({}) : variables.field.startsWith(''spec.jobTemplate'')
      ? one.?spec.?jobTemplate.?spec.?template.?metadata.?annotations.orValue({}) : variables.field.startsWith(''data'') ? one.?data.?spec.?template.?metadata.?annotations.orValue({})
      : one.?spec.?template.?metadata.?annotations.orValue({}))'
  - name: from
    expression: variables.notes[0][?'kyb.ai/restore-from'].orValue('')
  - name: same
    expression: '[''kyb.ai/restore-from'', ''kyb.ai/restore-as'', ''kyb.ai/restore-else'', ''kyb.ai/clone-stopped''].all(k, variables.notes[0][?k] == variables.notes[1][?k])'
  - name: own
    expression: variables.from.startsWith(request.namespace + '/') && !variables.from.matches('^(pod|template)/[^@]*$')
  - name: foreign
    expression: '!variables.own && variables.from.matches(''^[^/@]+/[^/@]+@[^/@]+$'')'
  - name: artifact
    expression: 'variables.own ? variables.from.substring(size(request.namespace) + 1).replace(''@'', ''.'').lowerAscii() : '''''
  validations:
  - expression: variables.from == '' || variables.same || variables.foreign || authorizer.group('kyb.ai').resource('artifacts').namespace(request.namespace).name(variables.artifact)
      .check('restore').allowed()
    reason: Forbidden
    messageExpression: 'variables.field + '' has kyb.ai/restore-from: '' + variables.from + '', and '' + request.userInfo.username + '' may not restore it: that takes
      the verb restore on artifacts.kyb.ai in namespace '' + request.namespace + ''; leave the annotation out, or have an administrator of the namespace bind the
      ClusterRole kyb-restore'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-restore-from
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-restore-from
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-checkpoint-policies
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - checkpointpolicies
      scope: Namespaced
  variables:
  - name: pods
    expression: authorizer.group('').resource('pods').namespace(request.namespace)
  - name: same
    expression: oldObject != null && oldObject.spec == object.spec
  - name: scales
    expression: object.spec.?idle.?object.hasValue() || object.spec.?schedule.orValue([]).exists(one, one.?idle.?object.hasValue())
  validations:
  - expression: variables.same || !has(object.spec.snapshots) || variables.pods.subresource('exec').check('create').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have snapshots of pods made: that takes the right to create pods/exec in namespace '' + request.namespace'
  - expression: variables.same || !variables.scales || authorizer.group('apps').resource('deployments').subresource('scale').namespace(request.namespace).check('patch').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have Deployments scaled to zero (idle.object): that takes the right to patch '' + ''deployments/scale
      in namespace '' + request.namespace'
  - expression: variables.same || !has(object.spec.rebalance) || (variables.pods.subresource('eviction').check('create').allowed() && authorizer.group('kyb.ai').resource('rebalancerequests').namespace(request.namespace).check('approve').allowed())
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have pods moved by their load (rebalance): that takes the right to create '' + ''pods/eviction, and
      the verb approve for rebalancerequests.kyb.ai, in namespace '' + request.namespace'
  - expression: variables.same || variables.pods.check('patch').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not say what counts for pods: that takes the right to patch pods in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-checkpoint-policies
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-checkpoint-policies
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-checkpoint-policy-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - checkpointpolicies/status
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes the status of a CheckpointPolicy
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-checkpoint-policy-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-checkpoint-policy-statuses
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-snapshot-templates
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - snapshottemplates
      scope: Namespaced
  variables:
  - name: pods
    expression: authorizer.group('').resource('pods').namespace(request.namespace)
  - name: same
    expression: oldObject != null && oldObject.spec == object.spec
  validations:
  - expression: variables.same || variables.pods.check('create').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have a pod made: that takes the right to create pods in namespace '' + request.namespace'
  - expression: variables.same || variables.pods.subresource('exec').check('create').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have the state of a pod kept: that takes the right to create pods/exec in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-snapshot-templates
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-snapshot-templates
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-snapshot-template-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - snapshottemplates/status
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes the status of a SnapshotTemplate
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-snapshot-template-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-snapshot-template-statuses
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-checkpoint-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      resources:
      - checkpointrequests
      scope: Namespaced
  variables:
  - name: pod
    expression: authorizer.group('').resource('pods').namespace(request.namespace).name(object.spec.pod)
  - name: forEviction
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-webhook' && object.spec.mode == 'Evict' && object.spec.?tier.orValue('') == 'object'
      && object.metadata.name.startsWith('evict-')
  - name: ofPolicy
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller' && object.spec.mode == 'Snapshot' && object.metadata.?ownerReferences.orValue([]).exists(one,
      one.kind in ['CheckpointPolicy', 'SnapshotTemplate'])
  - name: takenBack
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller' && object.spec.mode == 'Wake' && object.metadata.name.startsWith('zero-back-')
  - name: ofPlan
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller' && (object.metadata.name.startsWith('rbal-') || object.metadata.name.startsWith('preempt-'))
      && (object.spec.mode == 'Wake' || (object.spec.mode == 'Evict' && object.spec.?tier.orValue('') == 'object'))
  - name: ofLost
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller' && object.spec.mode == 'Evict' && object.spec.?tier.orValue('') ==
      'object' && object.metadata.name.startsWith('lost-')
  - name: may
    expression: 'variables.forEviction || variables.ofLost || variables.ofPolicy || variables.takenBack || variables.ofPlan ? true : object.spec.mode == ''Snapshot''
      ? variables.pod.subresource(''exec'').check(''create'').allowed() : object.spec.mode == ''Evict'' ? variables.pod.subresource(''eviction'').check(''create'').allowed()
      : variables.pod.check(''patch'').allowed()'
  - name: right
    expression: 'object.spec.mode == ''Snapshot'' ? ''create pods/exec'' : object.spec.mode == ''Evict'' ? ''create pods/eviction'' : ''patch pods'''
  validations:
  - expression: object.spec.?requestedBy.orValue('') == request.userInfo.username
    reason: Forbidden
    message: spec.requestedBy is written by the Kybernate webhook, which did not see this request; see whether its MutatingWebhookConfiguration has sign.requests.kyb.ai
  - expression: variables.may
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not ask for mode '' + object.spec.mode + '' of pod '' + object.spec.pod + '': that takes the right to ''
      + variables.right + '' in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-checkpoint-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-checkpoint-requests
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-checkpoint-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - checkpointrequests/status
      - rebalancerequests/status
      scope: Namespaced
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
    reason: Forbidden
    message: nobody but Kybernate's controller writes the status of a request
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-checkpoint-statuses
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-checkpoint-statuses
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-scaled-to-zero
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - checkpointrequests
      scope: Namespaced
  matchConditions:
  - name: ofDeployment
    expression: oldObject.spec.?requestedBy.orValue('') == 'system:serviceaccount:kyb-system:kyb-controller' && oldObject.metadata.name.startsWith('zero-')
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: oldObject.metadata.?annotations.orValue({})
  - name: free
    expression: 'request.userInfo.username == ''system:serviceaccount:kyb-system:kyb-extender'' ? [''kyb.ai/successor''] : [''kyb.ai/wanted'']'
  validations:
  - expression: object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
      && variables.now.all(k, k in variables.free || (k in variables.before && variables.before[k] == variables.now[k])) && variables.before.all(k, k in variables.free
      || k in variables.now)
    reason: Forbidden
    message: of a request that a Deployment was scaled to zero with only kyb.ai/wanted may change
  - expression: variables.now[?'kyb.ai/wanted'] == variables.before[?'kyb.ai/wanted'] || request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-proxy'
      || authorizer.group('apps').resource('deployments').subresource('scale').namespace(request.namespace).check('patch').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not have a Deployment scaled up (kyb.ai/wanted): that takes the right to patch '' + ''deployments/scale
      in namespace '' + request.namespace'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-scaled-to-zero
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-scaled-to-zero
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-rebalance-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - CREATE
      - UPDATE
      resources:
      - rebalancerequests
      scope: Namespaced
  variables:
  - name: asked
    expression: object.spec.?approvedPlan.orValue('')
  - name: before
    expression: 'oldObject == null ? '''' : oldObject.spec.?approvedPlan.orValue('''')'
  - name: pods
    expression: authorizer.group('').resource('pods').subresource('eviction')
  - name: may
    expression: 'oldObject != null ? true : request.namespace == ''kyb-system'' ? variables.pods.check(''create'').allowed() : has(object.spec.move) && has(object.spec.move.pod)
      ? variables.pods.namespace(request.namespace).name(object.spec.move.pod).check(''create'').allowed() : variables.pods.namespace(request.namespace).check(''create'').allowed()'
  validations:
  - expression: oldObject != null || object.spec.?requestedBy.orValue('') == request.userInfo.username
    reason: Forbidden
    message: spec.requestedBy is written by the Kybernate webhook, which did not see this request; see whether its MutatingWebhookConfiguration has sign.requests.kyb.ai
  - expression: variables.may
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not ask for this: it takes the right to create pods/eviction of the pods that may be '' + ''moved, which
      are those of namespace '' + request.namespace + (request.namespace == ''kyb-system'' ? '' and all others'' : '''')'
  - expression: oldObject != null || variables.asked == ''
    reason: Forbidden
    message: there is no plan yet that could be approved; leave spec.approvedPlan out
  - expression: variables.asked == variables.before || authorizer.group('kyb.ai').resource('rebalancerequests') .namespace(request.namespace).name(object.metadata.name).check('approve').allowed()
    reason: Forbidden
    messageExpression: 'request.userInfo.username + '' may not approve plans: that takes the verb approve for rebalancerequests.kyb.ai in namespace '' + request.namespace'
  - expression: oldObject == null || variables.asked == variables.before || (!has(oldObject.status) || !has(oldObject.status.startTime))
    reason: Forbidden
    message: its plan has begun; delete the request to have no more steps begin
  - expression: oldObject == null || variables.asked == variables.before || variables.asked == '' || (has(oldObject.status) && has(oldObject.status.plan) && oldObject.status.plan.hash
      == variables.asked)
    reason: Forbidden
    message: spec.approvedPlan is not status.plan.hash; read the plan as it is now, and approve that
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-rebalance-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-rebalance-requests
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-controller-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - pods/eviction
      scope: Namespaced
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      - DELETE
      resources:
      - pods
      scope: Namespaced
  matchConditions:
  - name: controller
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
  variables:
  - name: evicts
    expression: request.?subResource.orValue('') == 'eviction'
  - name: ofTemplate
    expression: '(request.operation == ''DELETE'' ? oldObject : object).metadata.?ownerReferences.orValue([]).exists(one, one.kind == ''SnapshotTemplate'' && one.apiVersion
      == ''kyb.ai/v1alpha1'' && one.?controller.orValue(false))'
  - name: notes
    expression: 'request.operation == ''DELETE'' ? {} : object.metadata.?annotations.orValue({})'
  - name: ofRestore
    expression: '''kyb.ai/restored-for'' in variables.notes && variables.notes[?''kyb.ai/restore-else''].orValue('''') == ''fail'' && object.metadata.?labels[?''kyb.ai/managed''].orValue('''')
      == ''true'''
  validations:
  - expression: variables.evicts || variables.ofTemplate || variables.ofRestore
    reason: Forbidden
    message: the controller may only make and delete pods of a SnapshotTemplate, and make those of a RestoreRequest
  - expression: variables.evicts || request.operation == 'DELETE' || !(request.namespace in ['kyb-system', 'kube-system'])
    reason: Forbidden
    message: the controller makes no pods in kyb-system and kube-system
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-controller-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-controller-account
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-controller-scales
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - apps
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - deployments/scale
      scope: Namespaced
  matchConditions:
  - name: controller
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
  validations:
  - expression: object.spec.?replicas.orValue(0) == 0 || oldObject.spec.?replicas.orValue(0) == 0
    reason: Forbidden
    message: the controller may scale a Deployment only to zero, or from zero
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-controller-scales
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-controller-scales
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-controller-evicts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  paramKind:
    apiVersion: v1
    kind: Pod
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - pods/eviction
      scope: Namespaced
  matchConditions:
  - name: controller
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-controller'
  validations:
  - expression: request.dryRun || params.metadata.name != request.name
    reason: Forbidden
    message: the controller may evict only pods with a seat, and of others ask whether they may be (dryRun)
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-controller-evicts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-controller-evicts
  validationActions:
  - Deny
  paramRef:
    parameterNotFoundAction: Allow
    selector:
      matchExpressions:
      - key: kyb.ai/managed
        operator: NotIn
        values:
        - 'true'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-extender-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods
      - pods/status
      scope: Namespaced
  matchConditions:
  - name: extender
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-extender'
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: oldObject.metadata.?annotations.orValue({})
  - name: gates
    expression: oldObject.spec.?schedulingGates.orValue([])
  validations:
  - expression: object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
      && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([]) && variables.now.all(k, k == 'kyb.ai/gang-plan' || (k in
      variables.before && variables.before[k] == variables.now[k])) && variables.before.all(k, k == 'kyb.ai/gang-plan' || k in variables.now)
    reason: Forbidden
    message: the extender may change nothing of a pod but kyb.ai/gang-plan and the scheduling gate kyb.ai/gang
  - expression: object.spec.containers == oldObject.spec.containers && object.spec.?initContainers == oldObject.spec.?initContainers && object.spec.?nodeSelector
      == oldObject.spec.?nodeSelector && object.spec.?affinity == oldObject.spec.?affinity && object.spec.?tolerations == oldObject.spec.?tolerations && object.spec.?activeDeadlineSeconds
      == oldObject.spec.?activeDeadlineSeconds && object.spec.?terminationGracePeriodSeconds == oldObject.spec.?terminationGracePeriodSeconds && (object.spec.?schedulingGates.orValue([])
      == variables.gates || object.spec.?schedulingGates.orValue([]) == variables.gates.filter(g, g.name != 'kyb.ai/gang'))
    reason: Forbidden
    message: the extender may change nothing of a pod but kyb.ai/gang-plan and the scheduling gate kyb.ai/gang
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-extender-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-extender-account
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-extender-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - checkpointrequests
      scope: Namespaced
  matchConditions:
  - name: extender
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-extender'
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: oldObject.metadata.?annotations.orValue({})
  validations:
  - expression: object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
      && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([]) && variables.now.all(k, k == 'kyb.ai/successor' || (k in
      variables.before && variables.before[k] == variables.now[k])) && variables.before.all(k, k == 'kyb.ai/successor' || k in variables.now)
    reason: Forbidden
    message: the extender may change nothing of a request but kyb.ai/successor
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-extender-requests
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-extender-requests
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-extender-binds
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  paramKind:
    apiVersion: v1
    kind: Pod
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - pods/binding
      - bindings
      scope: Namespaced
  matchConditions:
  - name: extender
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-extender'
  validations:
  - expression: params.metadata.name != object.metadata.name || params.spec.containers.exists(c, c.?resources.?limits.orValue({}).exists(r, r.startsWith('kyb.ai/gpu-')))
    reason: Forbidden
    messageExpression: '''the extender may bind only pods with a seat, and '' + object.metadata.name + '' has none'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-extender-binds
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-extender-binds
  validationActions:
  - Deny
  paramRef:
    parameterNotFoundAction: Allow
    selector:
      matchExpressions:
      - key: kyb.ai/managed
        operator: NotIn
        values:
        - 'true'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-debug-containers
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods/ephemeralcontainers
      scope: Namespaced
  matchConditions:
  - name: has-a-seat
    expression: '''kyb.ai/original-resources'' in object.metadata.?annotations.orValue({})'
  variables:
  - name: before
    expression: oldObject.spec.?ephemeralContainers.orValue([]).map(c, c.name)
  - name: new
    expression: object.spec.?ephemeralContainers.orValue([]).filter(c, !(c.name in variables.before))
  - name: wrong
    expression: variables.new.filter(c, c.?env.orValue([]).exists(v, v.name.startsWith('KYB_') || v.name == 'CUDA_VISIBLE_DEVICES' || (v.name == 'NVIDIA_VISIBLE_DEVICES'
      && v.?value.orValue('') != 'void')))
  - name: seeing
    expression: variables.new.filter(c, !c.?env.orValue([]).exists(v, v.name == 'NVIDIA_VISIBLE_DEVICES'))
  - name: mounting
    expression: variables.new.filter(c, c.?volumeMounts.orValue([]).exists(m, m.mountPath.contains('nvidia-container-devices')))
  - name: mighty
    expression: variables.new.filter(c, c.?securityContext.?privileged.orValue(false) || c.?securityContext.?capabilities.?add.orValue([]).exists(p, p.upperAscii().replace('CAP_',
      '') in ['ALL', 'BPF', 'CHECKPOINT_RESTORE', 'DAC_READ_SEARCH', 'PERFMON', 'SYS_ADMIN', 'SYS_BOOT', 'SYS_MODULE', 'SYS_RAWIO']))
  validations:
  - expression: size(variables.wrong) == 0
    reason: Forbidden
    messageExpression: '''container '' + variables.wrong[0].name + '' sets a variable that the system sets for the GPUs of a seat '' + ''(CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES,
      KYB_*); remove it'''
  - expression: size(variables.seeing) == 0
    reason: Forbidden
    messageExpression: '''container '' + variables.seeing[0].name + '' may see GPUs of other seats by its image or envFrom; '' + ''add --env NVIDIA_VISIBLE_DEVICES=void,
      which the webhook kyb-webhook does where it is in place'''
  - expression: size(variables.mounting) == 0
    reason: Forbidden
    messageExpression: '''container '' + variables.mounting[0].name + '' mounts something by which the vendor\''s runtime gives GPUs '' + ''(/var/run/nvidia-container-devices);
      leave it out'''
  - expression: size(variables.mighty) == 0
    reason: Forbidden
    messageExpression: '''container '' + variables.mighty[0].name + '' has rights beyond a container, and so the GPUs of other seats; '' + ''leave privileged and
      such capabilities out, as kubectl debug --profile=general does'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-debug-containers
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-debug-containers
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-kubelet-accounts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      - UPDATE
      resources:
      - pods
      - pods/status
      - pods/resize
      - pods/ephemeralcontainers
      scope: Namespaced
  matchConditions:
  - name: kubelet
    expression: '''system:nodes'' in request.userInfo.groups'
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: 'oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})'
  - name: managed
    expression: object.metadata.?labels[?'kyb.ai/managed'].orValue('')
  - name: touched
    expression: '[''kyb.ai/model'', ''kyb.ai/vram'', ''kyb.ai/gpus'', ''kyb.ai/prefer-group'', ''kyb.ai/require-group'', ''kyb.ai/gpu-product'', ''kyb.ai/policy'',
      ''kyb.ai/ready-within'', ''kyb.ai/turn'', ''kyb.ai/idle'', ''kyb.ai/ready-while'', ''kyb.ai/min-residency'', ''kyb.ai/max-wait'', ''kyb.ai/prefetch'', ''kyb.ai/priority'',
      ''kyb.ai/park-tier'', ''kyb.ai/cooperate'', ''kyb.ai/on-preempt'', ''kyb.ai/connections'', ''kyb.ai/nccl'', ''kyb.ai/gang'', ''kyb.ai/gang-size'', ''kyb.ai/restore-from'',
      ''kyb.ai/restore-as'', ''kyb.ai/restore-else'', ''kyb.ai/clone-stopped'', ''kyb.ai/original-resources''].filter(k, (k in variables.now) != (k in variables.before)
      || (k in variables.now && variables.now[k] != variables.before[k]))'
  validations:
  - expression: size(variables.touched) == 0
    reason: Forbidden
    messageExpression: '''a kubelet may not write the annotations '' + variables.touched.join('', '') + '': leave them to who makes the pod, and make pods with a
      seat by way of the API server'''
  - expression: 'variables.managed == (oldObject == null ? '''' : oldObject.metadata.?labels[?''kyb.ai/managed''].orValue(''''))'
    reason: Forbidden
    message: 'a kubelet may not write the label kyb.ai/managed: make pods with a seat by way of the API server, not as static pods of a node'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-kubelet-accounts
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-kubelet-accounts
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-opt-in
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - pods
      scope: Namespaced
  matchConditions:
  - name: labelled
    expression: '''kyb.ai/managed'' in object.metadata.?labels.orValue({})'
  validations:
  - expression: object.metadata.labels['kyb.ai/managed'] in ['true', 'false']
    reason: Invalid
    messageExpression: '''the label kyb.ai/managed is "'' + object.metadata.labels[''kyb.ai/managed''] + ''", which says neither yes nor no; write kyb.ai/managed:
      "true", or remove the label'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-opt-in
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-opt-in
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-no-effect
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      resources:
      - pods
      scope: Namespaced
  matchConditions:
  - name: not-labelled
    expression: object.metadata.?labels[?'kyb.ai/managed'].orValue('') != 'true'
  - name: asks-for-no-seat
    expression: '!(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, c.?resources.?limits.orValue({}).exists(r, r.startsWith(''kyb.ai/''))
      || c.?resources.?requests.orValue({}).exists(r, r.startsWith(''kyb.ai/'')))'
  variables:
  - name: named
    expression: '[''kyb.ai/model'', ''kyb.ai/vram'', ''kyb.ai/prefer-group'', ''kyb.ai/require-group'', ''kyb.ai/gpu-product'', ''kyb.ai/policy'', ''kyb.ai/ready-within'',
      ''kyb.ai/park-tier'', ''kyb.ai/turn'', ''kyb.ai/idle'', ''kyb.ai/ready-while'', ''kyb.ai/min-residency'', ''kyb.ai/max-wait'', ''kyb.ai/prefetch'', ''kyb.ai/priority'',
      ''kyb.ai/cooperate'', ''kyb.ai/on-preempt'', ''kyb.ai/connections'', ''kyb.ai/nccl'', ''kyb.ai/gang'', ''kyb.ai/gang-size'', ''kyb.ai/restore-from'', ''kyb.ai/restore-as'',
      ''kyb.ai/restore-else'', ''kyb.ai/clone-stopped''].filter(k, k in object.metadata.?annotations.orValue({}))'
  validations:
  - expression: size(variables.named) == 0
    messageExpression: 'variables.named.join('', '') + '' without effect: the pod has neither the label '' + ''kyb.ai/managed: "true" nor a limit of a kyb.ai resource'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-no-effect
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-no-effect
  validationActions:
  - Warn
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-proxy-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - kyb.ai
      apiVersions:
      - v1alpha1
      operations:
      - UPDATE
      resources:
      - checkpointrequests
      scope: Namespaced
  matchConditions:
  - name: proxy
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-proxy'
  validations:
  - expression: oldObject.spec.?requestedBy.orValue('') == 'system:serviceaccount:kyb-system:kyb-controller' && oldObject.metadata.name.startsWith('zero-') && object.metadata.?finalizers.orValue([])
      == oldObject.metadata.?finalizers.orValue([])
    reason: Forbidden
    message: the proxy may change nothing of a request but kyb.ai/wanted of those of a Deployment that was scaled to zero
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-proxy-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-proxy-account
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-sizing-annotations
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - pods
      - pods/status
      scope: Namespaced
  matchConditions:
  - name: has-a-seat
    expression: '''kyb.ai/original-resources'' in oldObject.metadata.?annotations.orValue({})'
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: oldObject.metadata.?annotations.orValue({})
  - name: sized_by
    expression: '[''kyb.ai/vram'', ''kyb.ai/gpus'', ''kyb.ai/original-resources''] + (''kyb.ai/vram'' in variables.before ? [] : [''kyb.ai/gpu-product'', ''kyb.ai/require-group''])'
  - name: changed
    expression: variables.sized_by.filter(k, (k in variables.now) != (k in variables.before) || (k in variables.now && variables.now[k] != variables.before[k]))
  - name: long
    expression: variables.now.filter(k, (k.startsWith('kyb.ai/') || k == 'nvidia.com/gpu-topology') && !(k in ['kyb.ai/original-resources', 'kyb.ai/gang-plan']) &&
      variables.now[k] != variables.before[?k].orValue('') && size(variables.now[k]) > 1024)
  - name: model
    expression: variables.now[?'kyb.ai/model'].orValue('')
  validations:
  - expression: size(variables.long) == 0
    reason: Forbidden
    messageExpression: variables.long.join(', ') + ' has more than 1024 characters; write at most as many'
  - expression: variables.model == variables.before[?'kyb.ai/model'].orValue('') || !variables.model.contains('/')
    reason: Forbidden
    message: kyb.ai/model has a '/', but requests name a model as model or namespace/model; write a name without it
  - expression: oldObject.metadata.?labels[?'kyb.ai/managed'].orValue('') != 'true' || object.metadata.?labels[?'kyb.ai/managed'].orValue('') == 'true'
    reason: Forbidden
    message: 'the label kyb.ai/managed of a pod with a seat stays "true": its seat is found by it; leave it as it is, or delete the pod'
  - expression: size(variables.changed) == 0
    reason: Forbidden
    messageExpression: 'variables.changed.join('', '') + " can''t change once a pod exists: its memory was computed from it; " + ''create a new pod with the value
      wanted'''
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-sizing-annotations
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-sizing-annotations
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-system-annotations
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - ''
      apiVersions:
      - v1
      operations:
      - CREATE
      - UPDATE
      resources:
      - pods
      - pods/status
      - pods/resize
      - pods/ephemeralcontainers
      - pods/binding
      - bindings
      scope: Namespaced
  variables:
  - name: now
    expression: object.metadata.?annotations.orValue({})
  - name: before
    expression: 'oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})'
  - name: touched
    expression: '[''kyb.ai/group'', ''kyb.ai/assigned-at'', ''kyb.ai/restore-claim'', ''kyb.ai/seat'', ''kyb.ai/touched-at'', ''kyb.ai/gang-plan'', ''kyb.ai/requests''].filter(k,
      (k in variables.now) != (k in variables.before) || (k in variables.now && variables.now[k] != variables.before[k]))'
  validations:
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-extender' || variables.touched.all(k, k in ['kyb.ai/seat', 'kyb.ai/touched-at',
      'kyb.ai/requests'])
    reason: Forbidden
    messageExpression: '''the annotations '' + variables.touched.filter(k, !(k in [''kyb.ai/seat'', ''kyb.ai/touched-at'', ''kyb.ai/requests''])).join('', '') + ''
      are written by the Kybernate extender when it places a pod; leave them as they are, '' + ''and ask for a group with kyb.ai/prefer-group or kyb.ai/require-group'''
  - expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-agent' || !variables.touched.exists(k, k in ['kyb.ai/seat', 'kyb.ai/touched-at',
      'kyb.ai/requests'])
    reason: Forbidden
    message: the annotations kyb.ai/seat, kyb.ai/touched-at and kyb.ai/requests are written by the Kybernate agent of the pod's node; leave them as they are
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-system-annotations
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-system-annotations
  validationActions:
  - Deny
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kyb-webhook-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups:
      - admissionregistration.k8s.io
      apiVersions:
      - v1
      operations:
      - UPDATE
      resources:
      - mutatingwebhookconfigurations
      - validatingwebhookconfigurations
      scope: Cluster
  matchConditions:
  - name: webhook
    expression: request.userInfo.username == 'system:serviceaccount:kyb-system:kyb-webhook'
  variables:
  - name: now
    expression: dyn(object).?webhooks.orValue([])
  - name: before
    expression: dyn(oldObject).?webhooks.orValue([])
  validations:
  - expression: object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})
      && object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]) && object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
      && size(variables.now) == size(variables.before) && variables.now.all(w, variables.before.exists(b, b.name == w.name && b.all(k, k in w) && w.all(k, k == 'clientConfig'
      || (k in b && w[k] == b[k])) && b.clientConfig.all(k, k == 'caBundle' || k in w.clientConfig) && w.clientConfig.all(k, k == 'caBundle' || (k in b.clientConfig
      && w.clientConfig[k] == b.clientConfig[k]))))
    reason: Forbidden
    message: the webhook may change nothing of its configurations but clientConfig.caBundle
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kyb-webhook-account
  labels:
    app.kubernetes.io/part-of: kybernate
spec:
  policyName: kyb-webhook-account
  validationActions:
  - Deny
