"""A federation over a network: one stream for each party, and recovery from the crash of any participant."""

import os

# gRPC has no option for the lowest version of TLS. This list applies to TLS 1.2 only and needs an RSA key, which our
# certificates do not have: that leaves 1.3. gRPC reads it when it is imported, so it is set here.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256")
