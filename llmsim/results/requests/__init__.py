"""Results by request, class and session: latencies, throughput, goodput."""
