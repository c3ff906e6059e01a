"""Why a job stands still or has failed."""
