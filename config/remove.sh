#!/bin/sh
# Removes everything that this operator created in a cluster, for clusters where it is gone for good: it was uninstalled while
# policies existed and will not be installed again. Drivers are removed even if pods use GPUs, and pods that use them may fail.
# Requires kubectl 1.32 or later, with administrator's rights.
#
# Usage: sh remove.sh [namespace of the operator, gpu-operator by default]
set -eu
namespace=${1:-gpu-operator}

if kubectl get deployment --namespace "$namespace" --selector app.kubernetes.io/name=nodestack-gpu-operator --output name |
    grep -q .; then
    echo "the operator is still installed in namespace $namespace: delete the policies instead, then uninstall the chart" >&2
    exit 1
fi

# Policies: their finalizer waits for the operator.
for policy in $(kubectl get clustergpupolicies --output name); do
    kubectl patch "$policy" --type=merge --patch '{"metadata": {"finalizers": null}}'
    kubectl delete "$policy" --ignore-not-found
done
kubectl delete gpunodes --all

# Components on nodes, the driver last: it can be unloaded only once the others have released the GPUs. NVIDIA's operator uses the label
# app.kubernetes.io/managed-by as well, so only keys of this operator count.
for stage in 'gpu.nodestack.dev/stage,gpu.nodestack.dev/stage!=driver' gpu.nodestack.dev/stage=driver; do
    kubectl delete daemonsets,pods --namespace "$namespace" --selector "$stage"
done
applied='{range .items[?(@.metadata.annotations.gpu\.nodestack\.dev/applied)]}{.metadata.name}{"\n"}{end}'
kubectl get runtimeclasses --output jsonpath="$applied" | while read -r class; do
    kubectl delete runtimeclass "$class"
done

# The Lease of the operator's replicas.
kubectl delete leases --namespace "$namespace" --selector app.kubernetes.io/name=nodestack-gpu-operator

# The label of nodes with GPUs.
kubectl label nodes --all gpu.nodestack.dev/present-

# Nodes: the other labels and the condition are the fields that the operator applied, so applying none of them removes them.
for node in $(kubectl get nodes --output jsonpath='{.items[*].metadata.name}'); do
    nothing="{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"$node\"}}"
    echo "$nothing" | kubectl apply --server-side --field-manager=gpu-operator/labels --filename=-
    echo "$nothing" | kubectl apply --server-side --field-manager=gpu-operator/health --subresource=status --filename=-
    taint=$(kubectl get node "$node" --output jsonpath='{.metadata.annotations.gpu\.nodestack\.dev/taint}')
    if [ -n "$taint" ]; then
        kubectl taint node "$node" "$taint-"
        kubectl annotate node "$node" gpu.nodestack.dev/taint-
    fi
    # A cordon without this operator's record is a user's.
    cordon=$(kubectl get node "$node" --output jsonpath='{.metadata.annotations.gpu\.nodestack\.dev/cordon}')
    if [ -n "$cordon" ]; then
        kubectl uncordon "$node"
        kubectl annotate node "$node" gpu.nodestack.dev/cordon-
    fi
done
