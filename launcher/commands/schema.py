"""gpu-launcher schema."""

import json

from launcher.schema import json_schema
from program.output import print_text


def schema() -> None:
    """Print the JSON schema of the manifests that are taken, for editors."""
    print_text(json.dumps(json_schema(), indent=2) + "\n")
