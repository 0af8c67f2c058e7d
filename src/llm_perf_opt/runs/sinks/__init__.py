"""Where finished runs are also sent: plug-ins, MLflow among them."""
