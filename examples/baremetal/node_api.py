"""A node API with a dozen made-up machines, to try the placement of virtual machines: `make node-up`.

`GET /nodes` lists them, as a system that knows your machines would. Run it with another port or file:

    python3 examples/baremetal/node_api.py 8090 examples/baremetal/machines.json
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8090
FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("machines.json")


class NodeApi(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/nodes"
        body = FILE.read_bytes() if found else json.dumps({"error": "GET /nodes lists the machines"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    print(f"{len(json.loads(FILE.read_bytes()))} machines at http://127.0.0.1:{PORT}/nodes", flush=True)
    ThreadingHTTPServer(("127.0.0.1", PORT), NodeApi).serve_forever()
