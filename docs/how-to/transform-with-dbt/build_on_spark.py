"""Run ``dbt build`` on Spark: dbt takes the session of its process, which has a view of the stream."""

import os
import sys

from dbt.cli.main import dbtRunner

from spark_sinks import register, session

spark = session(
    **{
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # dbt's tables are known to the next run: by a metastore in this folder, or by yours (hive.metastore.uris).
        "spark.sql.catalogImplementation": "hive",
    }
)
register(spark, os.environ["WEFT_STORE"], streams=["telemetry"])
done = dbtRunner().invoke(["build", "--profiles-dir", ".", "--target", "spark", *sys.argv[1:]])
spark.stop()
sys.exit(not done.success)
