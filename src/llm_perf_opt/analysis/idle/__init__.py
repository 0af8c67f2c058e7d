"""Why a device ran nothing, and who owns that time."""
