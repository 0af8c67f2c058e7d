"""A server under load: latencies at each load (``latency``), steps matched to requests (``matching``), parts of a request's time
(``parts``), and recommendations (``findings``)."""
