"""Several worker processes of one training, started again when one fails."""

from keras_tfopt.launcher.cluster import Cluster as Cluster
from keras_tfopt.launcher.cluster import cluster_of_hosts as cluster_of_hosts
from keras_tfopt.launcher.cluster import gpus_of_host as gpus_of_host
from keras_tfopt.launcher.cluster import local_cluster as local_cluster
from keras_tfopt.launcher.launch import LaunchSettings as LaunchSettings
from keras_tfopt.launcher.launch import launch as launch
from keras_tfopt.launcher.log import WorkerLog as WorkerLog
from keras_tfopt.launcher.manifests import (
    kubernetes_manifest as kubernetes_manifest,
)
from keras_tfopt.launcher.manifests import slurm_script as slurm_script
