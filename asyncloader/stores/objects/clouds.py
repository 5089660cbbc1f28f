"""The clouds whose objects obstore reads, a row each: what differs between them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CLOUDS", "Cloud"]


@dataclass(frozen=True, slots=True)
class Cloud:
    """What is to be known of a cloud.

    Attributes:
        client: obstore's class.
        prefixes: Of the names of its options, in obstore and the environment.
        options: What matters to reading, of the names in obstore's S3Config, GCSConfig and AzureConfig,
            beside those of all clouds.
        endpoint_option: The strongest of obstore's names for an endpoint: what is given in code should win
            over what is found, and AWS_ENDPOINT_URL_S3 of the environment wins over ``endpoint``.
        endpoint_variables: Where obstore finds its endpoint, the first that is set. It does not tell which
            one it took, and refuses http:// unless told.
        credentials: Each kind that obstore takes of a provider: the strings that it must have.
        servers: What says on which server a bucket is: options by their plain names, and the variables that
            count where no option is given. An endpoint that is given outweighs what follows it if
            ``endpoint_is_all``.
        has_profiles: Whether the shared files of AWS hold settings for it.
        endpoint_has_bucket: Whether consoles show an endpoint that ends in the bucket.
    """

    client: str
    prefixes: tuple[str, ...]
    options: frozenset[str]
    endpoint_option: str
    endpoint_variables: tuple[str, ...]
    credentials: tuple[tuple[str, ...], ...]
    servers: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    endpoint_is_all: bool = False
    has_profiles: bool = False
    endpoint_has_bucket: bool = False


_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

CLOUDS: Mapping[str, Cloud] = {
    "s3": Cloud(
        client="S3Store",
        prefixes=("aws_",),
        options=frozenset(
            {
                "access_key_id",
                "container_authorization_token_file",
                "container_credentials_full_uri",
                "container_credentials_relative_uri",
                "default_region",
                "imdsv1_fallback",
                "metadata_endpoint",
                "profile",
                "region",
                "request_payer",
                "role_arn",
                "role_session_name",
                "s3_express",
                "secret_access_key",
                "server_side_encryption",
                "session_token",
                "sse_customer_key_base64",
                "virtual_hosted_style_request",
                "web_identity_token_file",
            }
        ),
        endpoint_option="aws_endpoint_url_s3",
        endpoint_variables=_S3_ENDPOINTS,
        credentials=(("access_key_id", "secret_access_key"),),
        # A profile may have an endpoint of its own.
        servers=((("endpoint",), _S3_ENDPOINTS), (("profile",), ("AWS_PROFILE",))),
        endpoint_is_all=True,
        has_profiles=True,
        endpoint_has_bucket=True,
    ),
    "gs": Cloud(
        client="GCSStore",
        prefixes=("google_",),
        options=frozenset(
            {"application_credentials", "base_url", "bearer_token", "service_account", "service_account_key"}
        ),
        endpoint_option="base_url",
        endpoint_variables=("GOOGLE_BASE_URL",),
        credentials=(("token",),),
        servers=((("endpoint", "base_url"), ("GOOGLE_BASE_URL",)),),
    ),
    "az": Cloud(
        client="AzureStore",
        prefixes=("azure_storage_", "azure_"),
        options=frozenset(
            {
                "account_key",
                "account_name",
                "authority_host",
                "client_id",
                "client_secret",
                "credential_type",
                "encryption_key",
                "federated_token_file",
                "msi_endpoint",
                "msi_resource_id",
                "object_id",
                "sas_key",
                "tenant_id",
                "token",
                "use_azure_cli",
                "use_emulator",
                "use_fabric_endpoint",
            }
        ),
        endpoint_option="endpoint",
        endpoint_variables=_AZURE_ENDPOINTS,
        credentials=(("token",), ("sas_token",), ("access_key",)),
        servers=(
            (("endpoint",), _AZURE_ENDPOINTS),
            (("account_name",), ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")),
            (("use_emulator",), ("AZURE_STORAGE_USE_EMULATOR",)),
        ),
    ),
}
