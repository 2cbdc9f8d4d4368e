"""What every process shares: errors, gRPC conventions, settings, logs and ids."""
