#!/usr/bin/env bash
# Make the descriptors and the stubs again from the .proto files; needs grpcio-tools.
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=(apache/rocketmq/v2/definition.proto apache/rocketmq/v2/service.proto)
"${PYTHON:-python3}" -m grpc_tools.protoc -I . --pyi_out="$work" \
    --include_imports --descriptor_set_out=descriptors.binpb "${files[@]}"
for name in definition service; do
    sed -e 's/from apache\.rocketmq\.v2 import definition_pb2 as/from duemq.v5.protocol import definition as/' \
        "$work/apache/rocketmq/v2/${name}_pb2.pyi" >"$name.pyi"
done
