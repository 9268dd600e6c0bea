"""HTTP server of the API: connections, requests, limits and admission; it does not import the cluster's operations."""
