"""What can be seen from outside: spans for OpenTelemetry, families for Prometheus."""
