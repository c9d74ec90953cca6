"""A federation over a network: one stream for each party, that survives the death of anyone."""

import os

# gRPC has no switch for the lowest version of TLS. This list counts for TLS 1.2 only and wants an RSA key, which our
# certificates do not have: what is left is 1.3. gRPC reads it when it is imported, so it stands here.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256")
