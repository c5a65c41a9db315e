"""Plans of deployments, their capacity under latency targets, and which of many is best."""
