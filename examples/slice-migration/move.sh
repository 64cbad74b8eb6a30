#!/usr/bin/env bash
# Moves the highest replica of my-app from namespace `shared` to `app-team`, with its volume. Run it once for each replica to move; every
# step can be repeated, so run it again if it was interrupted.
set -euo pipefail

from=shared to=app-team set=my-app template=data

ordinal_to_move() {
  kubectl -n "$to" get sts "$set" -o jsonpath='{.spec.ordinals.start}'
}

# The first ordinal of the target says where we are: everything from there on has moved.
ordinal=$(($(ordinal_to_move) - 1))
if [ "$ordinal" -lt 0 ]; then
  echo "All replicas have moved." >&2
  exit 1
fi
pod="$set-$ordinal" claim="$template-$set-$ordinal"

echo "1. $pod leaves $from"
kubectl -n "$from" scale sts "$set" --replicas="$ordinal"
kubectl -n "$from" wait --for=delete "pod/$pod" --timeout=120s

echo "2. its volume is kept, its claim in $from goes"
volume=$(kubectl get pv -o jsonpath="{range .items[?(@.spec.claimRef.name=='$claim')]}{.metadata.name}{end}")
if [ -z "$volume" ]; then
  echo "No volume belongs to a claim $claim." >&2
  exit 1
fi
kubectl patch pv "$volume" --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
kubectl -n "$from" delete pvc "$claim" --ignore-not-found --timeout=120s

echo "3. $volume is kept for the claim of the same name in $to"
reference="{\"apiVersion\":\"v1\",\"kind\":\"PersistentVolumeClaim\",\"namespace\":\"$to\",\"name\":\"$claim\"}"
kubectl patch pv "$volume" --type=json -p "[{\"op\":\"replace\",\"path\":\"/spec/claimRef\",\"value\":$reference}]"

echo "4. $pod starts in $to"
replicas=$(($(kubectl -n "$to" get sts "$set" -o jsonpath='{.spec.replicas}') + 1))
kubectl -n "$to" patch sts "$set" --type=merge -p "{\"spec\":{\"replicas\":$replicas,\"ordinals\":{\"start\":$ordinal}}}"
kubectl -n "$to" rollout status sts "$set" --timeout=120s
